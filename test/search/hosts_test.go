package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/kazahana/kazahana/internal/lock"
)

// holders is a world of lock hosts, each with a client that holds a lock: the product's Host
// with its lines and holdings, on the product's rule over records. It lives in a bubble, whose
// time is the hosts' clock and the store's. The hosts do at once what is due; their requests
// and the answers arrive in time, late, or never.
type holders struct {
	holdersSetting
	began    time.Time
	over     chan struct{} // closed at the end of the world
	store    *shared
	hosts    []*holder
	late     []*flight // nobody waits for their answers
	asked    int
	granted  []string // leases
	greatest int64
	fault    string
}

// holdersSetting is the bounds of a world.
type holdersSetting struct {
	ticks int64
	asks  int // of clients in all
	lost  int // answers and requests that are lost or late
	off   rule
}

// holder is a host with a client.
type holder struct {
	w       *holders
	host    *lock.Host
	records *lock.Records
	process *process
	client  *client
	failed  map[string][2]int64 // releases that failed: how often, and when

	mu      sync.Mutex // guards flights, against requests that begin at the same time
	flights []*flight
}

// client holds the lock, or waits for it.
type client struct {
	leave   context.CancelFunc
	holding *lock.Holding // nil: it waits
	lost    bool          // it was told so, or has released the lock
	done    bool          // it was refused
}

// flight is a request of a host.
type flight struct {
	request lock.Request
	sent    time.Duration
	decided *decided
	answer  chan decided
	left    atomic.Bool // nobody waits for the answer
}

// decided is what the store has answered.
type decided struct {
	lease lock.Lease
	err   error
}

const holderTerm = 3 * tickMS

func newHolders(s holdersSetting) func() world {
	return func() world {
		w := &holders{holdersSetting: s, began: time.Now(), over: make(chan struct{})}
		w.store = newShared(func() int64 { return beganMS + w.Elapsed().Milliseconds() }, s.off)
		for range 2 {
			h := &holder{w: w, failed: map[string][2]int64{}, process: &process{w.store, map[string]seen{}}}
			h.records = lock.OnRecords(h.process)
			h.host = lock.NewHost(h, w, time.Hour)
			random := reflect.ValueOf(h.host).Elem().FieldByName("core").FieldByName("random")
			*(*func() float64)(unsafe.Pointer(random.UnsafeAddr())) = func() float64 { return 0 }
			w.hosts = append(w.hosts, h)
		}
		return w
	}
}

// end ends what is under way.
func (w *holders) end() {
	close(w.over)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, h := range w.hosts {
		if h.client != nil {
			h.client.leave()
		}
		_ = h.host.Close(ctx)
	}
	time.Sleep(time.Second) // what was to be tried again is given up
	synctest.Wait()
}

// Elapsed implements lock.Clock.
func (w *holders) Elapsed() time.Duration { return time.Since(w.began) }

// Do implements lock.Store: the request is on its way.
func (h *holder) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	f := &flight{request: r, sent: h.w.Elapsed(), answer: make(chan decided, 1)}
	h.mu.Lock()
	h.flights = append(h.flights, f)
	h.mu.Unlock()
	select {
	case d := <-f.answer:
		return d.lease, d.err
	case <-ctx.Done():
		f.left.Store(true)
		return lock.Lease{}, ctx.Err()
	case <-h.w.over:
		return lock.Lease{}, errLost
	}
}

// Get implements lock.Store.
func (h *holder) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	return h.records.Get(ctx, tenant, key)
}

// List implements lock.Store.
func (h *holder) List(ctx context.Context, tenant, after string, limit int) ([]lock.Lease, error) {
	return h.records.List(ctx, tenant, after, limit)
}

// AcquireWithin implements lock.Store.
func (h *holder) AcquireWithin(context.Context, lock.Request, time.Duration) (lock.Lease, error) {
	return lock.Lease{}, errors.ErrUnsupported
}

// Notify implements lock.Store: hosts have to ask.
func (h *holder) Notify(context.Context, string, string) (<-chan struct{}, error) {
	return nil, errors.ErrUnsupported
}

// Changes implements lock.Store.
func (h *holder) Changes(context.Context, string, string) (<-chan struct{}, error) {
	return nil, errors.ErrUnsupported
}

// Close implements lock.Store.
func (h *holder) Close() error { return nil }

// The moves of a world of holders. passes and lateComes are among them.
const (
	clientAsks int8 = iota + 100
	clientLeaves
	clientReleases
	requestDecided // who: the host times maxFlights, and the request
	answerHeard
	answerNotHeard
	requestLate
)

const maxFlights = 8

var holderMoves = map[int8]string{
	passes: "a tick passes", lateComes: "late comes the %s", clientAsks: "a client of host %d asks to hold the lock", clientLeaves: "the client of host %d leaves",
	clientReleases: "the client of host %d releases the lock", requestDecided: "the store carries out the %s", answerHeard: "host %d hears the answer to its %s",
	answerNotHeard: "the answer to the %s is lost", requestLate: "the %s is late",
}

func (w *holders) moves(all []move) []move {
	if w.fault != "" {
		return all
	}
	add := func(does bool, kind int8, who int) {
		if does {
			all = append(all, move{kind, int8(who), noClock})
		}
	}
	add(w.Elapsed() < ms(w.ticks*tickMS), passes, 0)
	for i, h := range w.hosts {
		c := h.client
		add(w.asked < w.asks && (c == nil || c.done || c.lost) && (i == 0 || w.asked > 0), clientAsks, i)
		add(c != nil && c.holding == nil && !c.done, clientLeaves, i)
		add(c != nil && c.holding != nil && !c.lost, clientReleases, i)
		for j, f := range h.flights {
			who := i*maxFlights + j
			add(f.decided == nil, requestDecided, who)
			add(f.decided != nil, answerHeard, who)
			add(f.decided != nil && w.lost > 0, answerNotHeard, who)
			add(f.decided == nil && w.lost > 0, requestLate, who)
		}
	}
	for i := range w.late {
		add(true, lateComes, i)
	}
	return all
}

func (w *holders) flight(m move) (*holder, *flight) {
	h := w.hosts[m.who/maxFlights]
	return h, h.flights[m.who%maxFlights]
}

func (w *holders) do(m move) {
	for _, h := range w.hosts { // for the race detector: what was looked at comes before what follows
		h.host.HasLine("", "")
		h.mu.Lock()
		h.flights = slices.Clip(h.flights)
		h.mu.Unlock()
	}
	switch m.kind {
	case passes:
		time.Sleep(ms(tickMS))
	case lateComes:
		f := w.late[m.who]
		w.late = slices.Delete(w.late, int(m.who), int(m.who)+1)
		w.decide(w.hosts[0], f)
	case clientAsks:
		w.hosts[m.who].asks()
	case clientLeaves:
		w.hosts[m.who].client.leave()
	case clientReleases:
		c := w.hosts[m.who].client
		c.lost = true
		go func() { _ = c.holding.Release(context.Background()) }()
	default:
		h, f := w.flight(m)
		switch m.kind {
		case requestDecided:
			f.decided = w.decide(h, f)
		case answerHeard:
			h.answered(f, *f.decided)
		case answerNotHeard, requestLate:
			w.lost--
			if m.kind == requestLate {
				w.late = append(w.late, f)
			}
			if f.request.Op == lock.Release {
				h.failed[f.request.LeaseID] = [2]int64{h.failed[f.request.LeaseID][0] + 1, w.Elapsed().Milliseconds()}
			}
			h.answered(f, decided{err: errLost})
		}
	}
	synctest.Wait()
	for _, h := range w.hosts {
		h.mu.Lock()
		h.flights = slices.DeleteFunc(h.flights, func(f *flight) bool { return f.left.Load() })
		slices.SortFunc(h.flights, func(a, b *flight) int {
			return cmp.Or(cmp.Compare(a.sent, b.sent), cmp.Compare(a.request.Op, b.request.Op), cmp.Compare(a.request.LeaseID, b.request.LeaseID))
		})
		h.mu.Unlock()
	}
}

func (w *holders) text(m move) string {
	text := holderMoves[m.kind]
	switch m.kind {
	case passes:
		return text
	case lateComes:
		return fmt.Sprintf(text, w.late[m.who])
	case clientAsks, clientLeaves, clientReleases:
		return fmt.Sprintf(text, m.who)
	}
	h, f := w.flight(m)
	if m.kind == answerHeard {
		return fmt.Sprintf(text, slices.Index(w.hosts, h), f)
	}
	return fmt.Sprintf(text, f)
}

func (f *flight) String() string {
	return fmt.Sprintf("%v by %s", f.request.Op, f.request.Owner)
}

// asks has a client ask to hold the lock, and wait for it.
func (h *holder) asks() {
	h.w.asked++
	ctx, cancel := context.WithCancel(context.Background())
	c := &client{leave: cancel}
	h.client = c
	want := lock.Wanted{
		Tenant: "default", Key: lockKey, Owner: fmt.Sprint("host-", slices.Index(h.w.hosts, h)), LeaseID: fmt.Sprintf("%032x", h.w.asked), TTL: ms(holderTerm), Wait: -1,
	}
	go func() {
		g, err := h.host.Hold(ctx, want, func(lock.Lease, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			c.lost = true
		})
		c.holding, c.done = g, err != nil
	}()
}

func (h *holder) answered(f *flight, d decided) {
	h.mu.Lock()
	h.flights = slices.DeleteFunc(h.flights, func(other *flight) bool { return other == f })
	h.mu.Unlock()
	if d.err == nil && h.w.off == countedFromSent {
		d.lease.RemainingMS += (h.w.Elapsed() - f.sent).Milliseconds()
	}
	f.answer <- d
}

// decide has the store carry out a request.
func (w *holders) decide(h *holder, f *flight) *decided {
	r := f.request
	if w.off == leaseNamed && r.Op == lock.Release {
		r.LeaseID = ""
	}
	l, err := h.records.Do(context.Background(), r)
	if err == nil && r.Op == lock.Acquire && !l.Repeated {
		if slices.Contains(w.granted, r.LeaseID) {
			w.fault = fmt.Sprintf("the acquire by %s is carried out twice", r.Owner)
		}
		if l.Token <= w.greatest {
			w.fault = fmt.Sprintf("token %d is granted after token %d", l.Token, w.greatest)
		}
		w.granted, w.greatest = append(w.granted, r.LeaseID), max(w.greatest, l.Token)
	}
	if err == nil && l.Repeated && w.off == leftShown {
		l.RemainingMS = holderTerm
	}
	return &decided{l, err}
}

// relies reports whether the host's client may rely on the lock: what the host says is left.
func (h *holder) relies() bool {
	c := h.client
	return c != nil && c.holding != nil && !c.lost && c.holding.Lease().RemainingMS > 0
}

func (w *holders) broken() string {
	if w.fault == "" && w.hosts[0].relies() && w.hosts[1].relies() {
		return fmt.Sprintf("both clients rely on the lock, with the tokens %d and %d", w.hosts[0].client.holding.Lease().Token, w.hosts[1].client.holding.Lease().Token)
	}
	return w.fault
}

var holdersUnimportant = fieldSet(sharedUnimportant, `
	search.holders.holdersSetting search.holders.began search.holders.over
	search.holder.w search.holder.host search.holder.mu search.client.leave search.flight.answer search.flight.left
	lock.hostCore.random lock.hostCore.calls lock.hostCore.alarms lock.hostCore.listeners lock.hostCore.now
	lock.line.core lock.line.deafen lock.waiter.values lock.waiter.done lock.waiter.asking lock.alarm.ring lock.alarm.timer
	lock.Holding.host lock.Holding.lost lock.Holding.renewal lock.Records.records`)

func (w *holders) fingerprint() fingerprint {
	s := sum{skip: holdersUnimportant}
	s.add(*w, w.lost, w.Elapsed(), w.fault != "")
	for _, h := range w.hosts {
		s.value(reflect.ValueOf(h.host).Elem().FieldByName("core"))
	}
	return s.done()
}
