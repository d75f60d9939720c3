package kubernetes

import (
	"context"
	"maps"
	"slices"

	"github.com/kazahana/kazahana/internal/provider"
)

// asked is this process's memory of a request: the grants that may have been written for it, and
// once it was answered, those of the answer.
type asked struct {
	turn   chan struct{} // has one element: of several calls with one request, one runs
	grants []slot
}

// keptRequests is how many requests are remembered before the ended ones go.
const keptRequests = 256

// enter returns the memory of the request, once no other call with it runs. leave ends the call.
func (q *pool) enter(ctx context.Context, req provider.AcquireRequest, nowMS int64) (a *asked, leave func(), err error) {
	if req.RequestID == "" {
		return &asked{}, func() {}, nil
	}
	label := requestLabel(req.Service, req.RequestID)
	q.mu.Lock()
	if len(q.asked) > keptRequests {
		maps.DeleteFunc(q.asked, func(_ string, a *asked) bool { return a.isOver(nowMS) })
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

// isOver reports whether no call with the request runs, and none of its grants lives.
func (a *asked) isOver(nowMS int64) bool {
	select {
	case <-a.turn:
		defer func() { a.turn <- struct{}{} }()
		return !slices.ContainsFunc(a.grants, func(s slot) bool { return s.End > nowMS })
	default:
		return false
	}
}

// drop forgets a grant that was not written, or was given back.
func (a *asked) drop(grant slot) {
	a.grants = slices.DeleteFunc(a.grants, func(s slot) bool { return s.Nonce == grant.Nonce })
}
