package lock_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// TestNeverTwoHolders has clients of three hosts want the same locks for minutes,
// while their ways to the store are cut, slow, or deliver late what they had given
// up on. A client that believes that it holds a lock is the only one that does.
// LS-INV-001.
func TestNeverTwoHolders(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(r *rig) {
				s := &swarm{rig: r, beliefs: map[string]map[int]time.Duration{}, tokens: map[string]int64{}}
				ctx, cancel := context.WithTimeout(r.Context(), 3*time.Minute)
				defer cancel()
				var all sync.WaitGroup
				for i := range 3 {
					h := []func() *host{r.host, r.plain, r.host}[i]()
					random := rand.New(rand.NewPCG(seed, uint64(i)))
					all.Go(func() { trouble(ctx, h.link, random) })
					for j := range 4 {
						c := &swarmClient{swarm: s, host: h, id: 10*i + j, random: rand.New(rand.NewPCG(seed, uint64(100+10*i+j)))}
						all.Go(func() { c.run(ctx) }) // seed 004-49
					}
				}
				all.Wait()
				if s.grants < 50 {
					t.Errorf("only %d locks were granted: the test shows nothing", s.grants)
				}
			})
		})
	}
}

// trouble changes the way to the store every now and then.
func trouble(ctx context.Context, l *link, random *rand.Rand) {
	for ctx.Err() == nil {
		d := time.Duration(random.Int64N(int64(2 * time.Second)))
		switch random.IntN(6) {
		case 0:
			l.meet(&obstacle{op: "all", fails: true})
		case 1:
			l.meet(&obstacle{op: "all", back: true, fails: true})
		case 2:
			l.meet(&obstacle{op: "all", back: true, delay: d})
		case 3:
			l.meet(&obstacle{op: "all", late: true, delay: 2 * d})
		default:
			l.meet()
		}
		time.Sleep(d)
	}
	l.meet()
}

// swarm is what the clients believe.
type swarm struct {
	rig *rig

	mu      sync.Mutex
	beliefs map[string]map[int]time.Duration // until when each client believes that it holds the key
	tokens  map[string]int64                 // the greatest so far
	grants  int
}

// enter notes that a client holds the key, unless it knows of the loss already.
func (s *swarm) enter(id int, l lock.Lease, until time.Duration, lost <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-lost:
		return
	default:
	}
	now := s.rig.elapsed()
	for other, end := range s.beliefs[l.Key] {
		if end > now {
			s.rig.Errorf("at %v client %d holds %q with token %d, and client %d until %v", now, id, l.Key, l.Token, other, end)
		}
	}
	if l.Token <= s.tokens[l.Key] {
		s.rig.Errorf("at %v client %d holds %q with token %d after %d", now, id, l.Key, l.Token, s.tokens[l.Key])
	}
	s.tokens[l.Key] = l.Token
	if s.beliefs[l.Key] == nil {
		s.beliefs[l.Key] = map[int]time.Duration{}
	}
	s.beliefs[l.Key][id] = until
	s.grants++
}

func (s *swarm) leave(id int, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.beliefs[key], id)
}

type swarmClient struct {
	swarm  *swarm
	host   *host
	id     int
	random *rand.Rand
}

func (c *swarmClient) upTo(d time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(d)))
}

func (c *swarmClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		want := lock.Request{
			Tenant: tenant, Key: fmt.Sprintf("key-%d", c.random.IntN(2)), Owner: fmt.Sprintf("owner-%d", c.id),
			TTLMS: 1000 + c.upTo(2*time.Second).Milliseconds(), Wait: c.upTo(4*time.Second) - time.Second/2,
		}
		if c.random.IntN(4) == 0 {
			want.RequestID = lock.NewLeaseID()
		}
		attempt, cancel := ctx, context.CancelFunc(func() {})
		if c.random.IntN(3) == 0 {
			attempt, cancel = context.WithTimeout(ctx, c.upTo(2*time.Second))
		}
		if c.random.IntN(2) == 0 {
			c.hold(ctx, attempt, want)
		} else {
			c.use(attempt, want)
		}
		cancel()
		time.Sleep(c.upTo(500 * time.Millisecond))
	}
}

// hold has the host renew, until the client is done or has lost the lock.
func (c *swarmClient) hold(ctx, attempt context.Context, want lock.Request) {
	lost := make(chan struct{})
	g, err := c.host.Hold(attempt, want, func(lock.Lease, error) {
		close(lost)
		c.swarm.leave(c.id, want.Key)
	})
	if err != nil {
		return
	}
	c.swarm.enter(c.id, g.Lease(), math.MaxInt64, lost)
	select {
	case <-lost:
	case <-time.After(c.upTo(8 * time.Second)):
	}
	c.swarm.leave(c.id, want.Key)
	release, cancel := context.WithTimeout(ctx, c.upTo(time.Second))
	defer cancel()
	_ = g.Release(release)
}

// use keeps to the rest of the lease.
func (c *swarmClient) use(attempt context.Context, want lock.Request) {
	l, err := c.host.Acquire(attempt, want)
	if err != nil {
		return
	}
	left := time.Duration(l.RemainingMS) * time.Millisecond
	c.swarm.enter(c.id, l, c.swarm.rig.elapsed()+left, nil)
	time.Sleep(min(left, c.upTo(3*time.Second)))
	c.swarm.leave(c.id, want.Key)
	_, _ = c.host.Change(attempt, lock.Request{Op: lock.Release, Tenant: tenant, Key: want.Key, Owner: want.Owner, LeaseID: l.LeaseID})
}
