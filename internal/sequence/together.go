package sequence

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
)

// maxTogether is how many calls one change carries out at most.
const maxTogether = 64

// crowds are the calls of this process that wait for the end of a change of the same key. The
// next change carries them out together: many clients of one sequence then cost the store
// little more than one.
type crowds struct {
	mu      sync.Mutex
	waiting map[crowd][]*waiter // first come first; of each crowd with a change under way
}

// crowd names the calls that one change can carry out. They have one payer.
type crowd struct{ tenant, key, payer string }

// waiter is a call that has waited.
type waiter struct {
	ctx     context.Context
	request Request
	group   *group // that carries it out; nil while it waits
	answer  answer // written before done is closed
	done    chan struct{}
}

// group is the calls of one change. Its context lasts for as long as one of them has a caller,
// and has the values of the first. here is how many callers have not left.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	here   int
}

// newGroup has no deadline of its own: each caller leaves at its own, and the last one ends the change.
func newGroup(calls []*waiter) {
	g := &group{here: len(calls)}
	g.ctx, g.cancel = context.WithCancel(context.WithoutCancel(calls[0].ctx))
	for _, one := range calls {
		one.group = g
	}
}

// together carries a call out: by itself where no other change is under way, and else together
// with the calls that wait for the end of that one too.
func (s *Records) together(ctx context.Context, r Request) answer {
	c := &s.crowds
	name := crowd{r.Tenant, r.Key, bounds.Payer(ctx)}
	c.mu.Lock()
	if _, busy := c.waiting[name]; !busy {
		c.waiting[name] = nil
		c.mu.Unlock()
		defer func() {
			if next := c.next(name, nil); len(next) > 0 {
				go s.serve(name, next)
			}
		}()
		return s.carryOut(ctx, []Request{r})[0]
	}
	one := &waiter{ctx: ctx, request: r, done: make(chan struct{})}
	c.waiting[name] = append(c.waiting[name], one)
	c.mu.Unlock()
	select {
	case <-one.done:
		return one.answer
	case <-ctx.Done():
		return answer{err: c.leave(name, one)}
	}
}

// next ends a change and returns the calls of the next one. Calls that come again are first. A
// call that is out of time leaves at once.
func (c *crowds) next(name crowd, again []*waiter) []*waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.DeleteFunc(append(again, c.waiting[name]...), (*waiter).late)
	if len(all) == 0 {
		delete(c.waiting, name)
		return nil
	}
	n := min(len(all), maxTogether)
	c.waiting[name] = all[n:]
	newGroup(all[:n])
	return all[:n:n]
}

// late reports whether the caller's time is up, even if nothing has told it so yet.
func (w *waiter) late() bool {
	end, limited := w.ctx.Deadline()
	return w.ctx.Err() != nil || limited && !time.Now().Before(end)
}

// leave is for a caller that is out of time. The error says whether the call may be carried out.
func (c *crowds) leave(name crowd, one *waiter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.group == nil {
		if waiting, busy := c.waiting[name]; busy {
			c.waiting[name] = slices.DeleteFunc(waiting, func(other *waiter) bool { return other == one })
		}
		return fmt.Errorf("%w: %w", record.ErrCrowded, one.ctx.Err())
	}
	if one.group.here--; one.group.here == 0 {
		one.group.cancel()
	}
	return fmt.Errorf("sequence %q: the store has not answered yet: %w", name.key, one.ctx.Err())
}

// serve carries out the calls that have waited, and calls that wait meanwhile.
func (s *Records) serve(name crowd, calls []*waiter) {
	record.MakeRoom()
	for len(calls) > 0 {
		calls = s.crowds.next(name, s.carryOutGroup(calls))
	}
}

// carryOutGroup carries out the calls of a group. It returns the calls that need another change.
func (s *Records) carryOutGroup(calls []*waiter) (again []*waiter) {
	g := calls[0].group
	defer g.cancel()
	requests := make([]Request, len(calls))
	for i, one := range calls {
		requests[i] = one.request
	}
	for i, got := range s.carryOut(g.ctx, requests) {
		one := calls[i]
		if got.err != errLater {
			one.answer = got
			close(one.done)
		} else {
			again = append(again, one)
		}
	}
	return again
}
