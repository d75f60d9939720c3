package kubernetes

import (
	"context"
	"maps"
	"slices"
)

// asked is this process's memory of a request.
type asked struct {
	turn     chan struct{} // has one element: of several calls with one request, one runs
	attempts []attempt
	// answered: leases were returned, and the attempts are these.
	answered bool
	untilMS  int64 // the greatest end of the attempts; the request is remembered until then
}

// attempt is a grant that may have been written.
type attempt struct {
	id    int64
	nonce string
}

// keptRequests is how many requests are remembered before the ended ones go.
const keptRequests = 256

// enter returns the memory of the request, once no other call with it runs. leave ends the call.
func (q *pool) enter(ctx context.Context, label string, nowMS int64) (a *asked, leave func(), err error) {
	q.mu.Lock()
	if len(q.asked) > keptRequests {
		maps.DeleteFunc(q.asked, func(_ string, a *asked) bool { return len(a.turn) == 1 && a.untilMS <= nowMS })
	}
	a = q.asked[label]
	if a == nil {
		a = &asked{turn: make(chan struct{}, 1)}
		a.turn <- struct{}{}
		q.asked[label] = a
	}
	q.mu.Unlock()
	select {
	case <-a.turn:
		return a, func() { a.turn <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// tries notes a grant before it is written.
func (a *asked) tries(s slot) {
	a.attempts = append(a.attempts, attempt{s.Lease.ID, s.Nonce})
	a.untilMS = max(a.untilMS, s.End)
}

// failed drops a grant that was not written.
func (a *asked) failed(s slot) {
	a.attempts = slices.DeleteFunc(a.attempts, func(t attempt) bool { return t == attempt{s.Lease.ID, s.Nonce} })
}

// answers notes the leases that were returned.
func (a *asked) answers(found []slot) {
	a.attempts, a.answered = nil, true
	for _, s := range found {
		a.tries(s)
	}
}
