package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record"
)

// network is the way between the processes and the store of records. The processes'
// goroutines wait in it, and the world lets them go on one at a time: so one seed replays
// one run, under any scheduling.
type network struct {
	w     *world
	loss  int        // so many messages of a hundred are lost or late
	mu    sync.Mutex // guards fresh
	fresh []*message // sent since the world looked last
	under []*message // under way
}

// message is a request, and then its answer.
type message struct {
	from  *link
	what  string
	about string // more, for the order
	do    func(record.Store) error
	err   error         // what do returned; written before back is closed
	done  bool          // it was carried out, and the answer is on its way
	back  chan struct{} // closed when the answer has arrived
	waits atomic.Bool   // the caller has not given up

	// For the trace of locks.
	request        *lock.Request // nil: it is about something else
	sent           time.Duration
	changes, wrote bool    // it is a Change; it wrote
	told           bool    // the answer says that the request was carried out
	lease          string  // that it has granted
	placed         *placed // for the trace of placement; nil: it is not about a record of that
}

// link is the connection of one process. It is the way of its client.
type link struct {
	net  *network
	d    *daemon
	name string
	gone atomic.Bool // the process has ended
}

var _ record.Store = (*link)(nil)

// locks keeps locks at the end of the link.
type locks struct{ *lock.Records }

type aboutKey struct{}

// Do implements lock.Store. What a request is about tells it from others for the same lock
// that the host sends at the same moment.
func (s locks) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	ctx = context.WithValue(ctx, requestKey{}, &r)
	return s.Records.Do(context.WithValue(ctx, aboutKey{}, fmt.Sprint(r.Op, " ", r.Owner, " ", r.LeaseID)), r)
}

// send has the store do something, and waits for the answer, which may not come.
func (l *link) send(ctx context.Context, what string, do func(record.Store) error) error {
	if l.gone.Load() {
		return errLost
	}
	about, _ := ctx.Value(aboutKey{}).(string)
	m := &message{from: l, what: what, about: about, do: do, back: make(chan struct{}), sent: time.Since(l.net.w.began)}
	m.request, _ = ctx.Value(requestKey{}).(*lock.Request)
	m.placed, _ = ctx.Value(placedKey{}).(*placed)
	m.waits.Store(true)
	l.net.mu.Lock()
	l.net.fresh = append(l.net.fresh, m)
	l.net.mu.Unlock()
	select {
	case <-m.back:
		return m.err
	case <-ctx.Done():
		m.waits.Store(false)
		if do != nil { // calls that began together end together: one at a time, in an order
			_ = l.turn(context.WithoutCancel(ctx), what)
		}
		return context.Cause(ctx)
	}
}

// turn returns when the world lets the call go on: calls of one moment wait for each other in an
// order that is the same each time.
func (l *link) turn(ctx context.Context, what string) error {
	ctx = context.WithValue(context.WithValue(ctx, requestKey{}, nil), placedKey{}, nil)
	return l.send(ctx, what, nil)
}

// Change implements record.Store.
func (l *link) Change(ctx context.Context, ask record.Ask, rule record.Rule) (atMS int64, err error) {
	var at atomic.Int64 // the message may arrive after its caller has gone
	err = l.send(ctx, "change "+strings.Join(ask.Keys, " "), func(s record.Store) error {
		ms, err := s.Change(context.Background(), ask, rule)
		at.Store(ms)
		return err
	})
	return at.Load(), err
}

// Read implements record.Store.
func (l *link) Read(ctx context.Context, ask record.Ask) (v record.View, err error) {
	seen := make(chan record.View, 1)
	err = l.send(ctx, "read "+strings.Join(ask.Keys, " "), func(s record.Store) error {
		v, err := s.Read(context.Background(), ask)
		seen <- v
		return err
	})
	if err == nil {
		v = <-seen
	}
	return v, err
}

// List implements record.Store.
func (l *link) List(ctx context.Context, prefix, after string, limit int) (page []record.Head, err error) {
	seen := make(chan []record.Head, 1)
	err = l.send(ctx, "list "+prefix, func(s record.Store) error {
		page, err := s.List(context.Background(), prefix, after, limit)
		seen <- page
		return err
	})
	if err == nil {
		page = <-seen
	}
	return page, err
}

// Watch implements record.Store: it tells nothing, so that hosts have to ask.
func (l *link) Watch(context.Context, string) (<-chan struct{}, error) {
	return nil, errors.ErrUnsupported
}

// Init implements record.Store.
func (l *link) Init(context.Context) error { return errors.ErrUnsupported }

// Fence implements record.Store.
func (l *link) Fence(context.Context) error { return errors.ErrUnsupported }

// Close implements record.Store.
func (l *link) Close() error { return nil }

// settle lets every goroutine go on until it waits for a message or for the time, and
// takes what they have sent. Which came first is chance: they are sorted.
func (n *network) settle() {
	var fresh []*message
	for turns := n.sent(); len(turns) > 0; turns = n.sent() {
		for _, m := range turns {
			if m.do != nil {
				fresh = append(fresh, m)
				continue
			}
			close(m.back)
			time.Sleep(time.Nanosecond)
			synctest.Wait()
		}
	}
	n.w.lockTrail.sends(fresh)
	n.under = append(n.under, fresh...)
	n.w.settled()
}

// sent takes what the goroutines have sent, when all of them wait.
func (n *network) sent() []*message {
	synctest.Wait()
	n.mu.Lock()
	fresh := n.fresh
	n.fresh = nil
	n.mu.Unlock()
	slices.SortStableFunc(fresh, func(a, b *message) int {
		return cmp.Or(strings.Compare(a.from.name, b.from.name), strings.Compare(a.what, b.what), strings.Compare(a.about, b.about))
	})
	return fresh
}

// step lets one message go a part of its way.
func (n *network) step() bool {
	n.settle()
	w := n.w
	if w.rnd.IntN(3) == 0 {
		if d := pick(w, w.daemons); d.life != nil && d.life.host != nil && d.life.host.actors.read() {
			time.Sleep(time.Nanosecond)
			n.settle()
			return true
		}
	}
	if len(n.under) == 0 {
		return false
	}
	i := w.rnd.IntN(len(n.under))
	m := n.under[i]
	w.current = m.from.d
	switch trouble := w.rnd.IntN(100) < n.loss; {
	case m.done:
		n.drop(i)
		n.answer(m)
	case w.nowMS() < w.downUntil, trouble && w.rnd.IntN(4) == 0:
		n.drop(i)
		w.count("requests refused")
		m.err = errLost
		n.answer(m)
	case trouble && w.rnd.IntN(3) == 0:
		n.drop(i)
		w.count("requests lost")
	case trouble && w.rnd.IntN(2) == 0:
		n.drop(i)
		n.deliver(m)
		if w.rnd.IntN(2) == 0 {
			w.count("answers lost")
			break
		}
		w.count("connections broken before the answer")
		m.err, m.told = errLost, false
		n.answer(m)
	case trouble:
		n.deliver(m)
		w.count("answers late")
		m.done = true
	default:
		n.drop(i)
		n.deliver(m)
		n.answer(m)
	}
	// Each message has a moment of its own, and so have the timers that begin with it.
	time.Sleep(time.Nanosecond)
	n.settle()
	return true
}

func (n *network) drop(i int) { n.under = slices.Delete(n.under, i, i+1) }

// deliver has the store carry the request out.
func (n *network) deliver(m *message) {
	if !m.waits.Load() {
		n.w.count("requests arrive after their caller has gone")
	}
	n.w.lockTrail.deliver(m)
	n.w.tells("%s: %s: %v", m.from.name, m.what, plain(m.err))
}

func (n *network) answer(m *message) {
	n.w.tells("%s: answer to %s: %v", m.from.name, m.what, plain(m.err))
	n.w.lockTrail.answers(m)
	close(m.back)
}

// plain returns an error without its names, which chance made.
func plain(err error) string {
	if err == nil {
		return "ok"
	}
	return fmt.Sprintf("%T", err)
}

// saw is plain for a process of the host's. Where the host is gone, chance says which of its
// calls ends first, and so what the others see of that.
func (h *host) saw(err error) string {
	if err != nil && h.link.gone.Load() {
		return "the host is gone"
	}
	return plain(err)
}

// some lets a number of messages go on.
func (n *network) some(most int) {
	for range n.w.rnd.IntN(most + 1) {
		if !n.step() {
			return
		}
	}
}
