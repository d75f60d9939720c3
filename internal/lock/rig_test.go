package lock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record"
)

const (
	tenant      = "default"
	key         = "orders/42"
	ttl         = 30 * time.Second
	callTimeout = 3 * time.Second
)

// bubble runs a test in bubble time, and ends with nothing left running.
func bubble(t *testing.T, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, began: time.Now()}
		r.records = newForgetful(r.storeMS)
		r.memory = lock.OnRecords(r.records)
		t.Cleanup(func() {
			for _, h := range r.hosts {
				r.must(h.Close(context.Background()))
			}
			r.late.Wait()
		})
		test(r)
	})
}

// rig is a store in memory and the hosts that use it, all in bubble time.
type rig struct {
	*testing.T
	began   time.Time
	memory  *lock.Records
	records *forgetful
	hosts   []*lock.Host
	late    sync.WaitGroup // requests still on their way
}

func (r *rig) storeMS() int64         { return time.Now().UnixMilli() }
func (r *rig) elapsed() time.Duration { return time.Since(r.began) }

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("at %v: %v", r.elapsed(), err)
	}
}

// host is a host at the end of a line to the store, which can be cut.
type host struct {
	*lock.Host
	*link
}

// host makes a host that the store tells of releases.
func (r *rig) host() *host { return r.connect(&link{records: r.memory}, false) }

// plain makes a host that has to ask.
func (r *rig) plain() *host { return r.connect(&link{records: r.memory}, true) }

func (r *rig) connect(l *link, plain bool) *host {
	l.began, l.late = r.began, &r.late
	var store lock.Store = wire{l, l.records}
	if plain {
		store = silent{store}
	}
	h := &host{lock.NewHost(store, l, callTimeout), l}
	r.hosts = append(r.hosts, h.Host)
	return h
}

// link is a host's way to the store, and its clock.
type link struct {
	records   *lock.Records
	began     time.Time
	suspended atomic.Int64 // nanoseconds that the clock counts beside bubble time

	calls atomic.Int64
	late  *sync.WaitGroup

	subscribing time.Duration // how long Notify takes
	unsubscribe func()        // ends the latest subscription, as a store does

	mu        sync.Mutex
	obstacles []*obstacle
}

// obstacle is what requests of an operation meet on their way, or their answers.
type obstacle struct {
	op     string // or all
	back   bool   // answers meet it
	delay  time.Duration
	fails  bool
	astray bool // something on the way answers
	late   bool // the request arrives after the delay, also if it was given up
	once   bool
	met    bool
	answer func() error // instead of the store's, where it is not nil
}

func (l *link) Elapsed() time.Duration {
	return time.Since(l.began) + time.Duration(l.suspended.Load())
}

// meet sets the obstacles.
func (l *link) meet(all ...*obstacle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.obstacles = all
}

var (
	errDown   = errors.New("connection refused")
	errAstray = &record.StrayError{Err: errors.New("404")}
)

// next are the obstacles of a request, or of its answer.
func (l *link) next(q lock.Request, back bool) (all []*obstacle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.obstacles {
		if o.back == back && (o.op == "all" || o.op == q.Op.String()) && !(o.once && o.met) {
			o.met, all = true, append(all, o)
		}
	}
	return all
}

// wire is the store at the end of the link.
type wire struct {
	*link
	*lock.Records
}

func (l wire) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	l.calls.Add(1)
	for _, o := range l.next(r, false) {
		if o.late {
			return l.arrive(ctx, r, o.delay)
		}
		if err := o.pass(); err != nil {
			return lock.Lease{}, err
		}
	}
	lease, err := l.Records.Do(ctx, r)
	for _, o := range l.next(r, true) {
		if err := o.pass(); err != nil {
			return lock.Lease{}, err
		}
	}
	return lease, err
}

func (o *obstacle) pass() error {
	time.Sleep(o.delay)
	if o.fails {
		return errDown
	}
	if o.astray {
		return errAstray
	}
	if o.answer != nil {
		return o.answer()
	}
	return nil
}

func (l wire) arrive(ctx context.Context, r lock.Request, delay time.Duration) (lock.Lease, error) {
	done := make(chan result, 1)
	l.late.Go(func() {
		time.Sleep(delay)
		lease, err := l.Records.Do(context.WithoutCancel(ctx), r)
		done <- result{lease: lease, err: err}
	})
	select {
	case got := <-done:
		return got.lease, got.err
	case <-ctx.Done():
		return lock.Lease{}, ctx.Err()
	}
}

func (l wire) Notify(ctx context.Context, tenant, key string) (<-chan struct{}, error) {
	time.Sleep(l.subscribing)
	ctx, end := context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsubscribe = end
	return l.Records.Notify(ctx, tenant, key)
}

// silent is a store that tells of no release.
type silent struct{ lock.Store }

func (silent) Notify(context.Context, string, string) (<-chan struct{}, error) {
	return nil, errors.ErrUnsupported
}

// wanted is a lock that the owner wants and waits for.
func wanted(owner string, wait time.Duration) lock.Request {
	return lock.Request{Tenant: tenant, Key: key, Owner: owner, TTLMS: ttl.Milliseconds(), Wait: wait}
}

// state is the lock as the store has it.
func (r *rig) state() lock.Lease {
	r.Helper()
	l, err := r.memory.Get(context.Background(), tenant, key)
	if err != nil && !errors.Is(err, lock.ErrNotFound) {
		r.Fatal(err)
	}
	return l
}

// take acquires where the lock is free.
func (r *rig) take(h *host, owner string) lock.Lease {
	r.Helper()
	l, err := h.Acquire(context.Background(), wanted(owner, 0))
	r.must(err)
	return l
}

// result is how a wait ended.
type result struct {
	lease lock.Lease
	err   error
	at    time.Duration
}

// line waits in the background.
func (r *rig) line(ctx context.Context, h *host, want lock.Request) <-chan result {
	c := make(chan result, 1)
	go func() {
		l, err := h.Acquire(ctx, want)
		c <- result{l, err, r.elapsed()}
	}()
	synctest.Wait()
	return c
}

// losses are the losses that were reported to a holder.
type losses struct {
	mu  sync.Mutex
	all []result
	rig *rig
}

func (l *losses) told(lease lock.Lease, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, result{lease, err, l.rig.elapsed()})
}

func (l *losses) seen() []result {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// server is a store behind a server that waits by itself: the server is a Host.
type server struct {
	wire
	host *lock.Host
}

func (server) Waits() bool { return true }

func (s server) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if r.Wait == 0 {
		return s.wire.Do(ctx, r)
	}
	s.calls.Add(1)
	began := s.Elapsed()
	r.Elsewhere = true
	l, err := s.host.Acquire(ctx, r)
	l.RemainingMS += (s.Elapsed() - began).Milliseconds() // as the client of a lease server does
	return l, err
}

func (r *rig) behind(front *host) *host {
	l := &link{records: r.memory, began: r.began, late: &r.late}
	h := &host{lock.NewHost(server{wire{l, l.records}, front.Host}, l, callTimeout), l}
	r.hosts = append([]*lock.Host{h.Host}, r.hosts...)
	return h
}
