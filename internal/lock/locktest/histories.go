package locktest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// The shape of one history: few calls on each key, because what is left open
// multiplies.
const (
	historyClients = 4
	historyCalls   = 6 // of each client
	historyKeys    = 2
	historyLost    = 4 // calls without an outcome, after which a client stops
	hammerLost     = 1 // likewise of a Hammer, where a fault meets all clients at once and all go on after it
	historyRounds  = 20
)

func testConcurrentHistories(s *suite) {
	s.histories(func(store lock.Store, _ uint64) lock.Store { return store })
}

// testFaultyHistories adds requests and answers that are lost. Clients ask again
// with the same request ID, as they should.
func testFaultyHistories(s *suite) { s.histories(Faulty) }

func (s *suite) histories(through func(lock.Store, uint64) lock.Store) {
	s.Helper()
	seed := rand.Uint64()
	stores := make([]lock.Store, historyClients)
	for i := range stores {
		stores[i] = through(s.open(), seed+uint64(i))
		s.clients[len(s.clients)-1] = stores[i] // what is late uses it
	}
	for round := range historyRounds {
		h := &History{Allowed: Allowed{Jumps: s.backend.Jumps, NoClock: s.backend.NoClock}}
		var group sync.WaitGroup
		for i, store := range stores {
			c := &chaosClient{
				Store: h.Client(i, store), owner: []string{alice, bob, "carol"}[i%3], short: s.short(), round: fmt.Sprint(round), id: i,
				random: rand.New(rand.NewPCG(seed, uint64(round*historyClients+i))), pass: s.passing(round), patience: patience, lost: historyLost,
			}
			group.Go(c.run)
		}
		group.Wait()
		if err := h.Check(); err != nil {
			s.Fatalf("seed %d, round %d: %v", seed, round, err)
		}
	}
}

// passing lets short terms end, where a round may: where that has to be waited
// for, only a few do.
func (s *suite) passing(round int) func(time.Duration) {
	switch {
	case s.backend.Advance != nil:
		return s.backend.Advance
	case round%(historyRounds/3) == 0:
		return time.Sleep
	}
	return func(time.Duration) {}
}

// chaosClient does what comes to its mind on the round's keys.
type chaosClient struct {
	lock.Store
	owner, round string
	id           int
	short        int64
	random       *rand.Rand
	serial       int
	pass         func(time.Duration)
	patience     time.Duration // with one call
	lost         int           // calls without an outcome, after which it stops
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
		var l lock.Lease
		var err error
		do := func(ctx context.Context) { l, err = c.Do(ctx, r) }
		if c.within(do); !lock.IsAnswer(err) && c.random.IntN(4) > 0 {
			c.within(do)
		}
		if !lock.IsAnswer(err) {
			lost++
		}
		if err == nil && l.State == lock.Active {
			held[k] = l.LeaseID
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
