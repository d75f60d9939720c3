// Package turnstile lets some calls through at a time. Where more come, their callers get
// turns one after the other, however many calls each has made.
package turnstile

import (
	"container/list"
	"context"
	"sync"
)

// Turnstile lets calls of callers through, each of which a C names.
type Turnstile[C comparable] struct {
	limit func() int // how many calls are let through at a time now

	mu      sync.Mutex // guards all below
	under   int        // calls that were let through
	callers list.List  // of *caller[C], the next one first
	byName  map[C]*list.Element
}

// caller is one that waits with at least one call.
type caller[C comparable] struct {
	name  C
	calls list.List // of chan struct{}, closed when the call's turn has come
}

// New returns a turnstile that lets so many calls through at a time.
func New[C comparable](atOnce int) *Turnstile[C] {
	return Varying[C](func() int { return atOnce })
}

// Varying returns a turnstile whose limit varies. It is looked at when calls come and go.
func Varying[C comparable](limit func() int) *Turnstile[C] {
	return &Turnstile[C]{limit: limit, byName: map[C]*list.Element{}}
}

// Enter waits for the call's turn, which ends with Leave. If ctx ends first, the call gets
// no turn, and the error is the cause.
func (t *Turnstile[C]) Enter(ctx context.Context, name C) error {
	t.mu.Lock()
	if t.callers.Len() == 0 && t.under < max(t.limit(), 1) {
		t.under++
		t.mu.Unlock()
		return nil
	}
	at := t.byName[name]
	if at == nil {
		at = t.callers.PushBack(&caller[C]{name: name})
		t.byName[name] = at
	}
	c, turn := at.Value.(*caller[C]), make(chan struct{})
	call := c.calls.PushBack(turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-turn:
		return nil // what comes next sees that ctx is done
	default:
	}
	c.calls.Remove(call)
	t.settle(at)
	return context.Cause(ctx)
}

// Leave gives the turn to the next caller.
func (t *Turnstile[C]) Leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.under--
	for most := max(t.limit(), 1); t.under < most; t.under++ {
		at := t.callers.Front()
		if at == nil {
			return
		}
		c := at.Value.(*caller[C])
		close(c.calls.Remove(c.calls.Front()).(chan struct{}))
		t.callers.MoveToBack(at)
		t.settle(at)
	}
}

// settle drops a caller that waits no more. mu is held.
func (t *Turnstile[C]) settle(at *list.Element) {
	if c := at.Value.(*caller[C]); c.calls.Len() == 0 {
		t.callers.Remove(at)
		delete(t.byName, c.name)
	}
}

// Waiting is how many calls wait.
func (t *Turnstile[C]) Waiting() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at := t.callers.Front(); at != nil; at = at.Next() {
		n += at.Value.(*caller[C]).calls.Len()
	}
	return n
}
