package locktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// The shape of one history. There are few calls on each key, because the calls with an unknown
// outcome multiply the possibilities.
const (
	historyClients = 4
	historyCalls   = 6 // of each client
	historyKeys    = 2
	historyLost    = 4 // calls without an outcome, after which a client stops
	historyRounds  = 16
	// between is how many requests of others may come before a repetition that gets its answer.
	between = lock.MaxReceipts - 1
	// hammerLost is historyLost for Hammer, where a fault meets all clients at once and
	// all go on after it.
	hammerLost = 1
	// hammerPaused bounds the rounds in which clients wait for the ends of their terms to
	// this part of the time, so that enough is done.
	hammerPaused = 5
)

// testHistories judges what concurrent clients see (LS-CC-001, LS-ACC-01). In every other round requests and
// answers are lost, and clients repeat them with the same request ID.
func testHistories(s *suite) {
	seed := rand.Uint64()
	var stores []lock.Store
	for range historyClients {
		stores = append(stores, s.open())
	}
	for round := range historyRounds {
		h := &History{Allowed: Allowed{Jumps: s.backend.Jumps, NoClock: s.backend.NoClock}}
		through, settled := stores, func() {}
		if round%2 == 1 {
			through, settled = faultyAll(stores, seed+uint64(round))
		}
		pass := func(time.Duration) {}
		if round%(historyRounds/3) == 0 {
			pass = time.Sleep
		}
		h.run(through, chaosClient{round: fmt.Sprint(round), short: s.short(), patience: patience, lost: historyLost, pass: pass}, seed+uint64(round))
		settled()
		if err := h.Check(); err != nil { // seed 002-4-2
			s.Fatalf("seed %d, round %d: %v", seed, round, err)
		}
	}
	for n, op := range []lock.Op{lock.Acquire, lock.Renew, lock.Release} {
		h := &History{Allowed: Allowed{Jumps: s.backend.Jumps, NoClock: s.backend.NoClock}}
		s.testLostAnswer(h, stores, op, seed+uint64(n))
		if err := h.Check(); err != nil {
			s.Fatalf("seed %d, %v: %v", seed, op, err)
		}
	}
}

// testLostAnswer has one client make a request whose answer is lost. Others make as many requests
// as may come in between, at the same time, and another process repeats the first one (LS-ACQ-004,
// LS-RNW-003, LS-REL-003, LS-ACC-04).
func (s *suite) testLostAnswer(h *History, stores []lock.Store, op lock.Op, seed uint64) {
	s.Helper()
	key := fmt.Sprint("lost/", op)
	about := func(op lock.Op) lock.Request {
		r := s.request(op, alice, long)
		if r.Key = key; op == lock.Release {
			r.TTLMS = 0
		}
		return r
	}
	first := h.Client(0, stores[0])
	if op != lock.Acquire {
		_, err := first.Do(s.context(), about(lock.Acquire))
		s.must(err)
	}
	lost := about(op)
	_, _ = h.Client(0, losing{stores[0]}).Do(s.context(), lost)
	var group sync.WaitGroup
	for i, store := range stores[1:] {
		c := &chaosClient{
			Store: h.Client(i+1, store), owner: []string{alice, bob}[i%2], id: i + 1, round: fmt.Sprint("lost-", op), short: long,
			patience: patience, random: rand.New(rand.NewPCG(seed, uint64(i))),
		}
		group.Go(func() {
			leaseID := ""
			for range between / (len(stores) - 1) {
				r := c.request(key, leaseID)
				for r.Op == 0 {
					r = c.request(key, leaseID)
				}
				c.within(func(ctx context.Context) {
					if l, err := c.Do(ctx, r); err == nil {
						leaseID = l.LeaseID
					}
				})
			}
		})
	}
	group.Wait()
	l, err := h.Client(len(stores), s.open()).Do(s.context(), lost)
	if !lock.IsAnswer(err) || err == nil && !l.Repeated || errors.As(err, new(*lock.HeldError)) {
		s.Errorf("made again, %+v answers %+v, %v", lost, l, err)
	}
}

// losing loses every answer.
type losing struct{ lock.Store }

func (l losing) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	_, _ = l.Store.Do(ctx, r)
	return lock.Lease{}, errLost
}

// Hammer runs random clients, one for each store, until ctx is done, while the caller
// does harm to the backend. It judges the clients' history, and returns how many calls
// they made and how many of those have an unknown outcome. short is the shortest term,
// patience the timeout of one call.
func Hammer(ctx context.Context, stores []lock.Store, allowed Allowed, short, patience time.Duration) (calls, unknown int, err error) {
	seed := rand.Uint64()
	began, paused := time.Now(), time.Duration(0)
	for round := 0; ctx.Err() == nil; round++ {
		h := &History{Allowed: allowed}
		pass, from := func(time.Duration) {}, time.Now()
		pausing := paused*hammerPaused <= time.Since(began)
		if pausing {
			pass = time.Sleep
		}
		h.run(stores, chaosClient{round: fmt.Sprint(round), short: short.Milliseconds(), patience: patience, lost: hammerLost, pass: pass}, seed+uint64(round))
		if pausing {
			paused += time.Since(from)
		}
		n, open := h.Len()
		calls, unknown = calls+n, unknown+open
		if err := h.Check(); err != nil {
			return calls, unknown, fmt.Errorf("seed %d, round %d: %w", seed, round, err)
		}
	}
	return calls, unknown, nil
}

// run has a client like this one use each store at the same time.
func (h *History) run(stores []lock.Store, like chaosClient, seed uint64) {
	var group sync.WaitGroup
	var sent sentRequests
	for i, store := range stores {
		c := like
		c.sent = &sent
		c.Store, c.owner, c.id = h.Client(i, store), []string{alice, bob, "carol"}[i%3], i
		c.random = rand.New(rand.NewPCG(seed, uint64(i)))
		group.Go(c.run)
	}
	group.Wait()
}

// chaosClient makes random calls on the keys of its round.
type chaosClient struct {
	lock.Store
	owner, round string
	id           int
	short        int64 // ms
	random       *rand.Rand
	serial       int
	pass         func(time.Duration) // waits for the end of a term
	patience     time.Duration       // with one call
	lost         int                 // calls without an outcome, after which it stops
	sent         *sentRequests       // by all clients of the round
}

// sentRequests are requests that another process may repeat.
type sentRequests struct {
	mu  sync.Mutex
	all []lock.Request
}

// orAgain returns the request, or now and then an earlier one of any client.
func (s *sentRequests) orAgain(r lock.Request, random *rand.Rand) lock.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) > 0 && random.IntN(6) == 0 {
		return s.all[random.IntN(len(s.all))]
	}
	s.all = append(s.all, r)
	return r
}

func (c *chaosClient) run() {
	held := map[string]string{} // key: lease ID
	lost := 0
	for i := 0; i < historyCalls && lost < c.lost; i++ {
		k := fmt.Sprintf("%s/%d", c.round, c.random.IntN(historyKeys))
		r := c.request(k, held[k])
		if r.Op == 0 {
			c.within(func(ctx context.Context) { _, _ = c.Get(ctx, tenant, k) })
			continue
		}
		r = c.sent.orAgain(r, c.random)
		var l lock.Lease
		var err error
		do := func(ctx context.Context) { l, err = c.Do(ctx, r) }
		if c.within(do); !lock.IsAnswer(err) && c.random.IntN(4) > 0 || c.random.IntN(8) == 0 {
			c.within(do)
		}
		if !lock.IsAnswer(err) {
			lost++
		}
		if err == nil && l.State == lock.Active {
			held[r.Key] = l.LeaseID
		}
		if err == nil && r.TTLMS == c.short && c.random.IntN(3) == 0 {
			c.pass(time.Duration(c.short) * time.Millisecond)
		}
	}
}

func (c *chaosClient) within(f func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	f(ctx)
}

func (c *chaosClient) request(key, leaseID string) lock.Request {
	c.serial++
	r := lock.Request{Tenant: tenant, Key: key, Owner: c.owner, RequestID: fmt.Sprintf("%s.%d.%d", c.round, c.id, c.serial)}
	if c.random.IntN(3) > 0 {
		r.LeaseID = leaseID
	}
	if r.TTLMS = long; c.random.IntN(4) == 0 {
		r.TTLMS = c.short
	}
	switch kind := c.random.IntN(10); {
	case kind < 5:
		r.Op = lock.Acquire
		r.LeaseID = fmt.Sprintf("%016x%016x", c.random.Uint64(), c.random.Uint64())
	case kind < 7:
		r.Op = lock.Renew
	case kind < 9:
		r.Op, r.TTLMS = lock.Release, 0
	}
	return r
}

var errLost = errors.New("the connection was lost")

// faulty is a store that loses one in four requests or answers, or carries requests out
// late.
type faulty struct {
	lock.Store
	late sync.WaitGroup

	mu     sync.Mutex
	random *rand.Rand
	next   chan struct{} // closed by the next request
}

// faultyAll returns the stores with faults. settled waits for late calls.
func faultyAll(stores []lock.Store, seed uint64) (through []lock.Store, settled func()) {
	var all []*faulty
	for i, s := range stores {
		f := &faulty{Store: s, random: rand.New(rand.NewPCG(seed, uint64(i))), next: make(chan struct{})}
		all, through = append(all, f), append(through, f)
	}
	return through, func() {
		for _, f := range all {
			f.draw()
			f.late.Wait()
		}
	}
}

// draw lets late requests go and returns the fate of the next one.
func (f *faulty) draw() (fate int, after <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.next)
	f.next = make(chan struct{})
	return f.random.IntN(12), f.next
}

func (f *faulty) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	switch fate, after := f.draw(); fate {
	case 0: // the request is lost
		return lock.Lease{}, errLost
	case 1: // the answer is lost
		_, _ = f.Store.Do(ctx, r)
		return lock.Lease{}, errLost
	case 2: // the request arrives after the next one was sent
		f.late.Go(func() {
			<-after
			_, _ = f.Store.Do(context.WithoutCancel(ctx), r)
		})
		return lock.Lease{}, errLost
	}
	return f.Store.Do(ctx, r)
}
