package lock

import (
	"context"
	"fmt"
	"time"
)

// hostCore decides what a Host does: when a store is asked and for which waiter, when a
// held lock is renewed, given up or released. It has no goroutine, no clock, no lock and
// no I/O. Every event happens at now; its consequences go out as calls and alarms; their
// ends are events too. Wait queues and holdings are parts of it.
type hostCore struct {
	now    time.Duration  // Elapsed, at this event
	random func() float64 // in [0, 1)
	waits  bool           // the store can wait by itself
	closed bool           // nothing new is begun
	gaveUp bool           // Close does not wait any more for the releases still to come
	open   int            // calls and releases that have begun and not ended

	queues map[name]*waitQueue
	held   map[name]*Holding
	doomed map[string]bool // leases without a holder that are being released, or were; see doom

	calls     []*call      // to begin
	alarms    []*alarm     // to set
	listeners []*waitQueue // to subscribe to releases
}

// call is a request to the store, or the call of a holder's lost.
type call struct {
	request Request
	values  context.Context // its values go with the request; may be nil
	final   bool            // Close does not end it, but its context does
	tell    func()          // instead of a request
	ended   func(Lease, error)

	cancel context.CancelFunc // once it has begun
	hungUp bool
}

// alarm is an event at a time. It may come later, and again.
type alarm struct {
	at    time.Duration
	ring  func()
	timer *time.Timer // the Host's
}

func (c *hostCore) begin(one *call) *call {
	c.open++
	c.calls = append(c.calls, one)
	return one
}

// hangUp ends a call early, if there is one.
func (one *call) hangUp() {
	if one != nil && one.cancel != nil {
		one.hungUp = true
		one.cancel()
	}
}

func (c *hostCore) wakeAt(a *alarm, at time.Duration) {
	a.at = at
	c.alarms = append(c.alarms, a)
}

// retryIn is the pause before a store that has failed is asked again.
func (c *hostCore) retryIn(failures int) time.Duration {
	return backoff(failures, retryFirst, retryMost, c.random())
}

// release releases a lease that has no holder, or that was perhaps never granted. It is
// repeated until there is an answer, or until the end, when the lease has ended by itself.
// failed is the event that it will be repeated.
func (c *hostCore) release(r Request, end time.Duration, failed, ended func(error)) {
	r.Op, r.RequestID, r.TTLMS = Release, "", 0
	c.open++
	failures := 0
	again := &alarm{}
	again.ring = func() {
		c.begin(&call{request: r, final: true, ended: func(_ Lease, err error) {
			failures++
			pause := c.retryIn(failures)
			if !IsAnswer(err) && c.now+pause < end && !c.gaveUp {
				c.wakeAt(again, c.now+pause)
				failed(err)
				return
			}
			c.open--
			ended(err)
		}})
	}
	again.ring()
}

// doom keeps a lease from being taken up again: a repetition of its request still finds it in
// the store.
func (c *hostCore) doom(r Request) { c.doomed[r.LeaseID] = true }

// released is the event that the store has released a lease, or that its term is over. An older
// answer of the store may come afterwards, and counts for one term.
func (c *hostCore) released(r Request) {
	c.doom(r)
	c.wakeAt(&alarm{ring: func() { delete(c.doomed, r.LeaseID) }}, c.now+r.TTL())
}

// isDoomed is the refusal of a lease that is being released.
func (c *hostCore) isDoomed(l Lease) error {
	if !c.doomed[l.LeaseID] {
		return nil
	}
	return fmt.Errorf("%w: its lease is being released", ErrRequestReused)
}

// discard releases a lease that has no holder any more. ended is the event that this is over.
func (c *hostCore) discard(r Request, end time.Duration, ended func(error)) {
	c.doom(r)
	c.release(r, end, func(error) {}, func(err error) {
		c.released(r)
		ended(err)
		c.wake(name{r.Tenant, r.Key})
	})
}

// wake is the news that a lock may be free, for its queue.
func (c *hostCore) wake(n name) {
	if l := c.queues[n]; l != nil {
		l.news()
	}
}
