package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/anishathalye/porcupine"

	"github.com/kazahana/kazahana/internal/lock"
)

// maxOpen is how many calls on a key with an unknown outcome are judged. Each of them multiplies the
// possibilities, and a slow machine leaves many.
const maxOpen = 8

// Allowed says which exceptions a history may show for a backend.
type Allowed struct {
	// Jumps: the backend may forget: its tokens may grow by more than one, and its
	// clock may be another one after a failover.
	Jumps bool

	// NoClock: the times that answers tell are those of hosts, and those of
	// concurrent calls may contradict each other.
	NoClock bool

	// Resends: the store may send a request again by itself, after an attempt that
	// got no answer, and answer with the second one's outcome.
	Resends bool

	// Forgets reports whether the backend may still forget unconfirmed changes. Looks
	// and refusals of calls that begin until then may speak of that, and are not judged.
	// nil: it forgets nothing.
	Forgets func() bool
}

// History has the requests of concurrent clients to a backend, and the answers. Its model
// is the specification, written a second time without a look at package lock, with the
// store's clock as far as answers tell it.
type History struct {
	Allowed

	mu    sync.Mutex
	clock int64 // orders calls and returns
	calls []call
}

type name struct{ tenant, key string }

// call is one request. While its outcome is unknown, returned is math.MaxInt64: it may
// take effect at any time, or never.
type call struct {
	client           int
	request          lock.Request // Op 0: a Get
	called, returned int64
	lease            lock.Lease
	err              error
	forgets          bool // Allowed.Forgets, when it began
}

func (c call) unknown() bool { return !lock.IsAnswer(c.err) }

// unconfirmed reports that the answer may speak of a change that the backend has forgotten since.
func (c call) unconfirmed() bool {
	return c.forgets && !c.unknown() && (c.err != nil || c.request.Op == 0)
}

// Client returns the store with a recorder. Request IDs must tell requests apart. The
// model remembers as many of them as a store.
func (h *History) Client(id int, store lock.Store) lock.Store { return recorder{store, h, id} }

type recorder struct {
	lock.Store
	history *History
	id      int
}

func (r recorder) Do(ctx context.Context, request lock.Request) (lock.Lease, error) {
	i := r.history.begin(r.id, request)
	l, err := r.Store.Do(ctx, request)
	r.history.end(i, l, err)
	return l, err
}

func (r recorder) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	i := r.history.begin(r.id, lock.Request{Tenant: tenant, Key: key})
	l, err := r.Store.Get(ctx, tenant, key)
	r.history.end(i, l, err)
	return l, err
}

func (h *History) begin(client int, r lock.Request) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	h.calls = append(h.calls, call{
		client: client, request: r, called: h.clock, returned: math.MaxInt64, err: errUnknown, forgets: h.forgets(),
	})
	return len(h.calls) - 1
}

func (h *History) forgets() bool { return h.Forgets != nil && h.Forgets() }

func (h *History) end(i int, l lock.Lease, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	c := &h.calls[i]
	c.lease, c.err = l, err
	if !c.unknown() {
		c.returned = h.clock
	}
}

// Add records a call that was made elsewhere, for example in another process. called and returned
// are by one clock for all calls, which is not Client's.
func (h *History) Add(client int, r lock.Request, called, returned int64, l lock.Lease, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := call{client: client, request: r, called: called, returned: returned, lease: l, err: err, forgets: h.forgets()}
	if c.unknown() {
		c.returned = math.MaxInt64
	}
	h.calls = append(h.calls, c)
}

// Check reports that no order of the calls, each taking effect at one moment
// between its call and its return, explains what the clients saw. The error shows
// the calls on the key. Of the calls on a key that follow more than maxOpen with an unknown outcome
// it judges none.
func (h *History) Check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	byKey := map[name][]porcupine.Operation{}
	for _, c := range h.calls {
		if c.unknown() && c.request.Op == 0 {
			continue // tells nothing and does nothing
		}
		n := name{c.request.Tenant, c.request.Key}
		if !c.unconfirmed() {
			byKey[n] = append(byKey[n], porcupine.Operation{ClientId: c.client, Input: c, Call: c.called, Return: c.returned})
		}
		if h.resent(c) {
			c.lease, c.err = lock.Lease{}, errUnknown
			byKey[n] = append(byKey[n], porcupine.Operation{ClientId: c.client, Input: c, Call: c.called, Return: c.returned})
		}
	}
	model := h.model()
	for n, operations := range byKey {
		if !porcupine.CheckOperations(model, judged(operations)) {
			return fmt.Errorf("no lock behaves like %s %q:\n%s", n.tenant, n.key, h.show(n))
		}
	}
	return nil
}

// judged returns the calls before the one that leaves more than maxOpen outcomes open. They are a
// history by themselves: the outcomes of calls that had not returned by then are unknown in it.
func judged(operations []porcupine.Operation) []porcupine.Operation {
	slices.SortStableFunc(operations, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	open := 0
	for i, o := range operations {
		if o.Input.(call).unknown() {
			open++
		}
		if open > maxOpen {
			return until(operations[:i], o.Call)
		}
	}
	return operations
}

func until(operations []porcupine.Operation, end int64) (before []porcupine.Operation) {
	for _, o := range operations {
		if o.Return > end {
			c := o.Input.(call)
			if c.request.Op == 0 {
				continue // a look tells nothing until it returns
			}
			c.lease, c.err = lock.Lease{}, errUnknown
			o.Input, o.Return = c, math.MaxInt64
		}
		before = append(before, o)
	}
	return before
}

// resent reports that an earlier attempt of the call may have been carried out: it gets
// the answer of a repeated request. The store does not tell a renewal that it is repeated
// once its lease is over.
func (h *History) resent(c call) bool {
	over := c.request.Op == lock.Renew && (errors.Is(c.err, lock.ErrExpired) || errors.Is(c.err, lock.ErrNotOwned))
	return h.Resends && c.request.RequestID != "" && (c.lease.Repeated || over || errors.Is(c.err, lock.ErrRequestReused))
}

// Len is how many calls were recorded, and how many of them have an unknown outcome.
func (h *History) Len() (calls, unknown int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.calls {
		if c.unknown() {
			unknown++
		}
	}
	return len(h.calls), unknown
}

// show is the calls on a key; a call that returned at math.MaxInt64 has no known outcome.
func (h *History) show(n name) string {
	var b strings.Builder
	for _, c := range h.calls {
		if (name{c.request.Tenant, c.request.Key}) == n {
			fmt.Fprintf(&b, "%d to %d, client %d: %+v: %+v, %v\n", c.called, c.returned, c.client, c.request, c.lease, c.err)
		}
	}
	return b.String()
}

func (h *History) model() porcupine.Model {
	nm := porcupine.NondeterministicModel{
		Init: func() []any {
			return []any{world{jumps: h.Jumps, noClock: h.NoClock, token: guess{loose: true}}}
		},
		Step: func(state, input, _ any) []any {
			var next []any
			for _, w := range state.(world).step(input.(call)) {
				next = append(next, w)
			}
			return next
		},
		Equal: func(a, b any) bool { return a.(world).equal(b.(world)) },
	}
	return nm.ToModel()
}

func (w world) equal(o world) bool {
	return w.token == o.token && w.lease == o.lease && w.owner == o.owner && w.status == o.status &&
		w.expires == o.expires && w.now == o.now &&
		w.acquired == o.acquired && slices.Equal(w.answers, o.answers) && slices.Equal(w.releases, o.releases)
}
