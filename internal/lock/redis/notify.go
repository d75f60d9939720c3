package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
)

// pingAfter is how long a subscription is silent before the server is asked
// whether it is there, and how long the server has to answer.
const pingAfter = 5 * time.Second

var errNoSubscription = errors.New("the connection that tells of releases is lost")

// waiters are all that wait on one client. They share a subscription, which is
// there as long as one of them is.
type waiters struct {
	client *redisconn.Client

	mu      sync.Mutex // guards current, and all of every subscription but its pubsub
	current *subscription
	running sync.WaitGroup
	closed  bool
}

// subscription is one connection, and ends with it.
type subscription struct {
	owner  *waiters
	pubsub *redis.PubSub
	ctx    context.Context // ends with the subscription
	end    context.CancelCauseFunc
	topics map[string]*topic
	orders []order       // to be sent, in order
	wake   chan struct{} // there are orders
}

// topic is a channel of Redis. It is there until its subscription was confirmed
// and nobody waits, so that a confirmation is never that of an earlier one.
type topic struct {
	confirmed chan struct{} // closed by the server's confirmation
	waiting   map[chan struct{}]struct{}
}

type order struct {
	name      string
	subscribe bool
}

// Notify implements lock.Notifier.
func (s *Store) Notify(ctx context.Context, tenant, key string) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.waiters.wait(ctx, s.keyOf(tenant, key))
}

func (w *waiters) wait(ctx context.Context, name string) (<-chan struct{}, error) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, redisconn.ErrClosed
	}
	s := w.subscription()
	t := s.topics[name]
	if t == nil {
		t = &topic{confirmed: make(chan struct{}), waiting: map[chan struct{}]struct{}{}}
		s.topics[name] = t
		s.send(order{name, true})
	}
	c := make(chan struct{}, 1)
	t.waiting[c] = struct{}{}
	w.mu.Unlock()
	context.AfterFunc(ctx, func() { s.leave(name, t, c) })
	select {
	case <-t.confirmed:
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	}
}

// subscription is the one there is, or a new one. Under w.mu.
func (w *waiters) subscription() *subscription {
	if w.current == nil {
		s := &subscription{owner: w, topics: map[string]*topic{}, wake: make(chan struct{}, 1)}
		s.ctx, s.end = context.WithCancelCause(context.Background())
		s.pubsub = w.client.Subscription(s.ctx)
		w.current = s
		w.running.Go(s.write)
	}
	return w.current
}

// send has an order sent. Under w.mu.
func (s *subscription) send(o order) {
	s.orders = append(s.orders, o)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// write sends the orders, and begins to read once there is a connection.
func (s *subscription) write() {
	reading := false
	for {
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			return
		}
		s.owner.mu.Lock()
		orders := s.orders
		s.orders = nil
		s.owner.mu.Unlock()
		for _, o := range orders {
			send := s.pubsub.Unsubscribe
			if o.subscribe {
				send = s.pubsub.Subscribe
			}
			if err := send(s.ctx, o.name); err != nil {
				s.lost(err)
				return
			}
		}
		if !reading {
			reading = true
			s.owner.running.Go(s.read)
		}
	}
}

// read understands what the server sends. The library would connect anew after
// an error by itself; but what was published meanwhile is lost, and those who
// wait must know that.
func (s *subscription) read() {
	asked := false
	for {
		message, err := s.pubsub.ReceiveTimeout(s.ctx, pingAfter)
		var timeout interface{ Timeout() bool }
		if errors.As(err, &timeout) && timeout.Timeout() && !asked {
			asked = true
			err = s.pubsub.Ping(s.ctx)
		} else {
			asked = false
		}
		if err != nil {
			s.lost(err)
			return
		}
		switch m := message.(type) {
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				s.confirm(m.Channel)
			}
		case *redis.Message:
			s.tell(m.Channel)
		}
	}
}

func (s *subscription) confirm(name string) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	t := s.topics[name]
	if t == nil || s.ctx.Err() != nil {
		return
	}
	close(t.confirmed) // it is subscribed to once
	s.tidy(name, t)
}

// tell wakes those who wait for the key. Under the mutex, as is every close, so
// that no token is sent on a closed channel.
func (s *subscription) tell(name string) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	t := s.topics[name]
	if t == nil {
		return
	}
	for c := range t.waiting {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// leave ends one wait.
func (s *subscription) leave(name string, t *topic, c chan struct{}) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	if _, waits := t.waiting[c]; !waits {
		return // the subscription has ended
	}
	delete(t.waiting, c)
	close(c)
	s.tidy(name, t)
}

// tidy ends a topic that nobody waits for, and with the last the subscription.
// Under the mutex.
func (s *subscription) tidy(name string, t *topic) {
	if len(t.waiting) > 0 {
		return
	}
	select {
	case <-t.confirmed:
		delete(s.topics, name)
		s.send(order{name, false})
	default:
	}
	for _, t := range s.topics {
		if len(t.waiting) > 0 {
			return
		}
	}
	s.finish(errNoSubscription)
}

// lost is the end of the connection: all are told, and go by their timers.
func (s *subscription) lost(err error) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.finish(fmt.Errorf("%s: %w: %w", s.owner.client.Config().Place(), errNoSubscription, err))
}

// finish ends the subscription. Under the mutex.
func (s *subscription) finish(why error) {
	if s.ctx.Err() != nil {
		return
	}
	if s.owner.current == s {
		s.owner.current = nil
	}
	s.end(why)
	for _, t := range s.topics {
		for c := range t.waiting {
			delete(t.waiting, c)
			close(c)
		}
	}
	// Closing waits for a write or a dial under way.
	s.owner.running.Go(func() { _ = s.pubsub.Close() })
}

// close ends all waits, and returns when nothing of them runs any more.
func (w *waiters) close() {
	w.mu.Lock()
	w.closed = true
	if w.current != nil {
		w.current.finish(redisconn.ErrClosed)
	}
	w.mu.Unlock()
	w.running.Wait()
}
