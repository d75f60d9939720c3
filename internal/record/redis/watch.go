package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
)

const pingAfter = 5 * time.Second

var errNoSubscription = errors.New("the connection that tells of changes is lost")

// watchers are all that watch on one client. They share a subscription, which is
// there as long as one of them is.
type watchers struct {
	client *redisconn.Client
	// pingAfter is how long a subscription is silent before the server is asked whether
	// it is there, and how long the server has to answer.
	pingAfter time.Duration

	mu      sync.Mutex // guards current, and all of every subscription but its pubsub
	current *subscription
	running sync.WaitGroup
	closed  bool
}

// subscription is one connection, and ends with it.
type subscription struct {
	owner  *watchers
	pubsub *redis.PubSub
	ctx    context.Context // ends with the subscription
	end    context.CancelCauseFunc
	topics map[string]*topic
	all    map[*watcher]struct{}
	orders []order       // to be sent, in order
	wake   chan struct{} // there are orders
}

// topic is a channel of Redis. It is there until its subscription was confirmed
// and nothing watches it, so that a confirmation never comes from an earlier subscription.
type topic struct {
	confirmed chan struct{} // closed by the server's confirmation
	watching  map[*watcher]struct{}
}

// watcher is one Watch.
type watcher struct {
	prefix string
	topics []string
	tokens chan struct{}
	stop   func() bool // ends what its context would do
}

type order struct {
	names     []string
	subscribe bool
}

// Watch implements record.Store.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan struct{}, error) {
	if err := record.ValidatePrefix(prefix); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &watcher{prefix: prefix, tokens: make(chan struct{}, 1)}
	if strings.HasSuffix(prefix, "/") {
		for n := range channels {
			w.topics = append(w.topics, s.channel(n))
		}
	} else {
		w.topics = []string{s.channelOf(prefix)}
	}
	return s.watchers.watch(ctx, w)
}

func (all *watchers) watch(ctx context.Context, w *watcher) (<-chan struct{}, error) {
	all.mu.Lock()
	if all.closed {
		all.mu.Unlock()
		return nil, redisconn.ErrClosed
	}
	s := all.subscription()
	s.all[w] = struct{}{}
	var confirmed []chan struct{}
	var missing []string
	for _, name := range w.topics {
		t := s.topics[name]
		if t == nil {
			t = &topic{confirmed: make(chan struct{}), watching: map[*watcher]struct{}{}}
			s.topics[name] = t
			missing = append(missing, name)
		}
		t.watching[w] = struct{}{}
		confirmed = append(confirmed, t.confirmed)
	}
	s.send(order{missing, true})
	w.stop = context.AfterFunc(ctx, func() { s.leave(w) })
	all.mu.Unlock()
	for _, c := range confirmed {
		select {
		case <-c:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
	return w.tokens, nil
}

// subscription is the one there is, or a new one. Under the mutex.
func (all *watchers) subscription() *subscription {
	if all.current == nil {
		s := &subscription{owner: all, topics: map[string]*topic{}, all: map[*watcher]struct{}{}, wake: make(chan struct{}, 1)}
		s.ctx, s.end = context.WithCancelCause(context.Background())
		s.pubsub = all.client.Subscription(s.ctx)
		all.current = s
		all.running.Go(s.write)
	}
	return all.current
}

// send queues an order. Under the mutex.
func (s *subscription) send(o order) {
	if len(o.names) == 0 {
		return
	}
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
			if err := send(s.ctx, o.names...); err != nil {
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

// read understands the server's messages. The library would connect anew after an error
// by itself; but messages published meanwhile are lost, and watchers must know that.
func (s *subscription) read() {
	asked := false
	for {
		message, err := s.pubsub.ReceiveTimeout(s.ctx, s.owner.pingAfter)
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
			s.tell(m.Channel, m.Payload)
		}
	}
}

func (s *subscription) confirm(name string) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	if t := s.topics[name]; t != nil && s.ctx.Err() == nil {
		select {
		case <-t.confirmed: // the library subscribed anew
		default:
			close(t.confirmed)
		}
		s.tidy(name)
	}
}

// tell gives tokens to the watchers of the key. Under the mutex, as is every close, so
// that no token is sent on a closed channel.
func (s *subscription) tell(name, key string) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	t := s.topics[name]
	if t == nil {
		return
	}
	for w := range t.watching {
		if strings.HasPrefix(key, w.prefix) {
			select {
			case w.tokens <- struct{}{}:
			default:
			}
		}
	}
}

// leave ends one watch.
func (s *subscription) leave(w *watcher) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	if _, watches := s.all[w]; !watches {
		return // the subscription has ended
	}
	delete(s.all, w)
	close(w.tokens)
	for _, name := range w.topics {
		delete(s.topics[name].watching, w)
		s.tidy(name)
	}
	if len(s.all) == 0 {
		s.finish(errNoSubscription)
	}
}

// tidy ends a topic that nothing watches. Under the mutex.
func (s *subscription) tidy(name string) {
	t := s.topics[name]
	if len(t.watching) > 0 {
		return
	}
	select {
	case <-t.confirmed:
		delete(s.topics, name)
		s.send(order{[]string{name}, false})
	default:
	}
}

// lost is the end of the connection: all watches end with it.
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
	for w := range s.all {
		w.stop() // a context that lasts would keep the subscription in memory
		delete(s.all, w)
		close(w.tokens)
	}
	// Closing waits for a write or a dial under way.
	s.owner.running.Go(func() { _ = s.pubsub.Close() })
}

// close ends all watches, and returns when nothing of them runs any more.
func (all *watchers) close() {
	all.mu.Lock()
	all.closed = true
	if all.current != nil {
		all.current.finish(redisconn.ErrClosed)
	}
	all.mu.Unlock()
	all.running.Wait()
}
