package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/kubetest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// A world is a few processes on one API server, with requests that are carried out one at
// a time, in an order that chance decides. Requests and answers get lost, processes give
// up, clocks are wrong and jump, pools are fenced and change their layout, and an operator
// deletes the head. In every world, no two leases that were handed out overlap.
type world struct {
	*rig
	rand   *rand.Rand
	all    []*process
	leases []*handed
	story  []string
}

// process is one of a world. It does one thing at a time.
type process struct {
	name   string
	p      *Provider
	terms  provider.Terms
	offset atomic.Int64 // of its clock
	asks   chan *asking
	done   chan func() // what came of the operation
	asking *asking     // the request that waits for its turn
	busy   bool
	cancel context.CancelFunc
	again  string // a request with an unknown outcome
	held   []*handed
}

// asking is a request that has arrived at the server.
type asking struct {
	what string
	fate chan fate
}

type fate int

const (
	carriedOut fate = iota
	answerLost
	requestLost
)

// handed is a lease that a process was given. It may be used until the end.
type handed struct {
	lease.Lease
	end int64
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{rig: newRig(t), rand: rand.New(rand.NewPCG(seed, 0))}
	fine, coarse := only(0, 3), provider.DefaultTerms().WithBitSeq(9)
	coarse.IDs = provider.IDRange{Low: 0, End: 2}
	for i, terms := range []provider.Terms{fine, fine, coarse} {
		q := &process{name: fmt.Sprint("process", i), terms: terms, asks: make(chan *asking), done: make(chan func())}
		w.Allow(q.name, kubetest.Verbs(t)...)
		cfg := Config{Services: provider.Services{Default: terms}}
		cfg.Config = kubeconn.Config{Kubeconfig: w.Kubeconfig(t, q.name), NowMS: func() int64 { return w.clock.Load() + q.offset.Load() }}
		p, err := Open(cfg)
		must.Succeed(t, err)
		t.Cleanup(func() { p.Close() })
		q.p = p
		w.all = append(w.all, q)
	}
	w.Fault(w.arrive)
	return w
}

// arrive has a request wait for its turn.
func (w *world) arrive(rw http.ResponseWriter, r *http.Request) bool {
	i := slices.IndexFunc(w.all, func(q *process) bool { return r.Header.Get("Authorization") == "Bearer "+q.name })
	if i < 0 {
		return false // the world is over
	}
	a := &asking{r.Method + " " + r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], make(chan fate, 1)}
	select {
	case w.all[i].asks <- a:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	switch <-a.fate {
	case answerLost:
		w.Serve(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case requestLost:
		panic(http.ErrAbortHandler)
	}
	return false
}

func (w *world) tell(format string, args ...any) {
	w.story = append(w.story, fmt.Sprintf(format, args...))
}

// settle waits until the process asks, or has finished its step.
func (w *world) settle(q *process) {
	select {
	case q.asking = <-q.asks:
	case came := <-q.done:
		q.busy, q.asking = false, nil
		q.cancel()
		came()
	}
}

// begin begins an operation, of which came is told when its turn is.
func (w *world) begin(q *process, what string, f func(ctx context.Context) (came func())) {
	w.tell("%s: %s", q.name, what)
	ctx, cancel := context.WithCancel(ctx(w.t))
	q.busy, q.cancel = true, cancel
	go func() { q.done <- f(ctx) }()
	w.settle(q)
}

// step lets one process go on, or begin something.
func (w *world) step() {
	switch w.rand.IntN(40) {
	case 0:
		w.tell("the head is deleted")
		w.Delete(headName("default"))
		return
	case 1, 2, 3:
		w.clock.Add(w.rand.Int64N((6 * time.Minute).Milliseconds()))
		return
	case 4:
		q := w.all[w.rand.IntN(len(w.all))]
		q.offset.Store(w.rand.Int64N((18 * time.Minute).Milliseconds()) - (9 * time.Minute).Milliseconds())
		return
	}
	q := w.all[w.rand.IntN(len(w.all))]
	if q.busy {
		w.answer(q)
		return
	}
	switch n := w.rand.IntN(20); {
	case n == 0:
		w.begin(q, "fence", func(ctx context.Context) func() {
			_, err := q.p.Fence(ctx)
			return func() { w.tell("%s: fence: %v", q.name, err) }
		})
	case n <= 4:
		w.begin(q, "init", func(ctx context.Context) func() {
			err := q.p.Init(ctx, "")
			return func() { w.tell("%s: init: %v", q.name, err) }
		})
	case n <= 8 && len(q.held) > 0:
		w.extend(q, q.held[w.rand.IntN(len(q.held))])
	case n <= 12 && len(q.held) > 0:
		w.release(q, w.rand.IntN(len(q.held)))
	default:
		w.acquire(q)
	}
}

// answer decides what becomes of a request.
func (w *world) answer(q *process) {
	f := carriedOut
	switch w.rand.IntN(12) {
	case 0:
		f = answerLost
	case 1:
		f = requestLost
	}
	w.tell("%s: %s, fate %d", q.name, q.asking.what, f)
	if f != carriedOut && w.rand.IntN(2) == 0 {
		q.cancel()
	}
	q.asking.fate <- f
	w.settle(q)
}

func (w *world) acquire(q *process) {
	req := provider.AcquireRequest{RequestID: q.again, ThroughputPerMS: w.rand.Int64N(600)}
	if q.again == "" {
		req.RequestID = provider.NewSecret()
	}
	w.begin(q, "acquire "+req.RequestID[:4], func(ctx context.Context) func() {
		leases, err := q.p.Acquire(ctx, req)
		return func() {
			w.tell("%s: acquire: %v, %v", q.name, leases, err)
			q.again = ""
			if err != nil && !errors.Is(err, provider.ErrConflict) {
				q.again = req.RequestID
			}
			for _, l := range leases {
				if !slices.ContainsFunc(q.held, func(h *handed) bool { return h.Secret == l.Secret }) {
					h := &handed{l, l.ReservedUntil}
					q.held, w.leases = append(q.held, h), append(w.leases, h)
					w.check(h)
				}
			}
		}
	})
}

// release gives a lease back: from the moment on that the request is made, nothing is made
// under it.
func (w *world) release(q *process, i int) {
	h := q.held[i]
	q.held = slices.Delete(q.held, i, i+1)
	at := min(max(w.clock.Load(), h.Created), h.Expired-1)
	h.end = min(h.end, at+1)
	w.begin(q, fmt.Sprint("release ", h.ID), func(ctx context.Context) func() {
		err := q.p.Release(ctx, providertest.SignedRelease(h.Lease, at))
		return func() { w.tell("%s: release: %v", q.name, err) }
	})
}

func (w *world) extend(q *process, h *handed) {
	w.begin(q, fmt.Sprint("extend ", h.ID), func(ctx context.Context) func() {
		longer, err := provider.Extend(ctx, q.p, "", h.Lease)
		return func() {
			w.tell("%s: extend: %v, %v", q.name, longer, err)
			if err == nil {
				h.Expired, h.ReservedUntil, h.end = longer.Expired, longer.ReservedUntil, max(h.end, longer.ReservedUntil)
				w.check(h)
			}
		}
	})
}

// check compares a lease with all that were handed out before.
func (w *world) check(h *handed) {
	w.t.Helper()
	own := h.Slot()
	for _, other := range w.leases {
		slot := other.Slot()
		if other != h && own.Start < slot.End && slot.Start < own.End && h.Created < other.end && other.Created < h.end {
			w.t.Fatalf("two leases overlap: %v until %d, and %v until %d\n%s", h.Lease, h.end, other.Lease, other.end, strings.Join(w.story, "\n"))
		}
	}
}

func TestWorlds(t *testing.T) {
	worlds, steps := uint64(15), 250
	if ring.IsDeep(t) {
		worlds = 300
	}
	granted := map[int]int{} // by layout
	for seed := range worlds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range steps {
				w.step()
			}
			w.Fault(nil)
			for _, q := range w.all {
				for q.busy {
					q.asking.fate <- carriedOut
					w.settle(q)
				}
			}
			for _, h := range w.leases {
				granted[h.BitSeq]++
			}
		})
	}
	if len(granted) != 2 {
		t.Errorf("leases by layout are %v: no world changed the layout", granted)
	}
}
