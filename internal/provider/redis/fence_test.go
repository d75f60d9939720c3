package redis

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

const testTime = snowflake.DefaultEpochMS + 100*24*3600*1000

// rig is one pool, whose clock the test sets, on servers that come and go.
type rig struct {
	*testing.T
	clock    atomic.Int64
	cfg      Config
	longest  int64
	provider *Provider
}

// newRig opens a declared pool of four machine IDs.
func newRig(t *testing.T, s *server, edit ...func(*Config)) *rig {
	t.Helper()
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 0, End: 4}
	r := &rig{T: t, cfg: configOf(s, provider.Services{Default: terms})}
	r.clock.Store(testTime)
	r.cfg.NowMS = r.clock.Load
	r.cfg.ConfirmWait = await.Patience // a slow machine's replica is not a silent one
	for _, e := range edit {
		e(&r.cfg)
	}
	r.longest = r.cfg.longestMS(provider.DefaultPool)
	r.provider = mustOpen(t, r.cfg)
	mustInit(t, r.provider)
	return r
}

// on opens the same pool on another server, or with other settings.
func (r *rig) on(s *server, edit ...func(*Config)) *Provider {
	r.Helper()
	cfg := r.cfg
	cfg.Addrs = []string{s.Sock}
	for _, e := range edit {
		e(&cfg)
	}
	return mustOpen(r, cfg)
}

func (r *rig) acquire(p *Provider) lease.Lease {
	r.Helper()
	leases, err := p.Acquire(testContext(r), provider.AcquireRequest{RequestID: provider.NewSecret()})
	must.Succeed(r, err)
	return leases[0]
}

// fenced acquires where the fence must refuse until a time.
func (r *rig) fenced(p *Provider, untilMS int64, why string) {
	r.Helper()
	leases, err := p.Acquire(testContext(r), provider.AcquireRequest{RequestID: provider.NewSecret()})
	var fenced *provider.FencedError
	if !errors.As(err, &fenced) {
		r.Fatalf("Acquire gave %v and the error %v, want a FencedError", leases, err)
	}
	if fenced.UntilMS != untilMS || !strings.Contains(fenced.Reason, why) {
		r.Fatalf("the error is %v (%d ms from now), want one until %d ms from now because of %q",
			err, fenced.UntilMS-r.clock.Load(), untilMS-r.clock.Load(), why)
	}
}

func (r *rig) lost(p *Provider, leases ...lease.Lease) int {
	r.Helper()
	lost, err := provider.Verify(testContext(r), p, "", leases)
	must.Succeed(r, err)
	return len(lost)
}

const (
	whyMissing = "had no record of pool"
	whyChanged = "was restarted, or another one has taken its place"
)

// persistent has every write on disk before it is answered.
func persistent(tb testing.TB) *server {
	return redistest.New(tb, "--appendonly", "yes", "--appendfsync", "always")
}

func TestRestartWithPersistence(t *testing.T) {
	s := persistent(t)
	r := newRig(t, s)
	l, m := r.acquire(r.provider), r.acquire(r.provider)
	request := provider.AcquireRequest{RequestID: provider.NewSecret()}
	if _, err := r.provider.Acquire(testContext(t), request); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	until := r.clock.Load() + r.longest
	r.fenced(r.provider, until, whyChanged)
	// A repeated request is no exception: its grant may have been given back, its
	// slot granted to another, and both forgotten.
	var fenced *provider.FencedError
	if leases, err := r.provider.Acquire(testContext(t), request); !errors.As(err, &fenced) {
		t.Errorf("repeated behind a restart: %v, %v", leases, err)
	}
	// What the store knows goes on: leases are their holders', and can be given back. None
	// is extended.
	if r.lost(r.provider, l, m) != 0 {
		t.Error("Verify says that a lease is lost which the store has")
	}
	r.clock.Add(1000)
	if longer, err := provider.Extend(testContext(t), r.provider, "", l); !errors.As(err, &fenced) || fenced.UntilMS != until {
		t.Errorf("extended behind a restart: %v, %v", longer, err)
	}
	if err := r.provider.Release(testContext(t), providertest.SignedRelease(m, r.clock.Load())); err != nil {
		t.Error(err)
	}
	r.fenced(r.provider, until, whyChanged)
	r.clock.Store(until)
	next := r.acquire(r.provider) // no more fence
	s.Restart()
	// The extension is the first to notice.
	if longer, err := provider.Extend(testContext(t), r.provider, "", next); !errors.As(err, &fenced) || fenced.UntilMS != until+r.longest {
		t.Errorf("extended behind another restart: %v, %v", longer, err)
	}
	r.fenced(r.provider, until+r.longest, whyChanged)
}

// What follows from a loss, a restart, or both, and when it ends. Terms, the clock and the
// fence that is set are those of the client that finds it.
// Seed 001-25.
func TestFences(t *testing.T) {
	const minute, hour = 60_000, 3600_000
	for name, c := range map[string]struct {
		fence   time.Duration // failover_fence; less than 0: not set
		losses  []string
		advance int64 // between them
		until   int64 // ms after the last loss
		why     string
	}{
		"restart":                        {-1, []string{"restart"}, 0, longest, whyChanged},
		"flush":                          {-1, []string{"flush"}, 0, longest, whyMissing},
		"failover_fence":                 {time.Minute, []string{"restart"}, 0, minute, whyChanged},
		"no fence":                       {0, []string{"restart"}, 0, 0, ""},
		"no fence does not stand a loss": {0, []string{"flush", "restart"}, 0, longest, whyMissing},
		"restart during a fence":         {-1, []string{"restart", "restart"}, longest / 2, longest, whyChanged},
		"a clock that is behind":         {-1, []string{"restart"}, -hour, hour + longest, whyChanged},
		"a longer term was granted":      {-1, []string{"long", "restart"}, 0, 3*hour + longest/2, whyChanged},
		"init after a restart":           {-1, []string{"restart", "init"}, 0, 0, ""},
		"init before any request":        {-1, []string{"unseen restart", "init"}, 0, 0, ""},
		"restart after init":             {-1, []string{"restart", "init", "restart"}, 0, longest, whyChanged},
	} {
		t.Run(name, func(t *testing.T) {
			s := persistent(t)
			r := newRig(t, s, func(cfg *Config) { cfg.FailoverFence, cfg.FailoverFenceSet = max(c.fence, 0), c.fence >= 0 })
			before := r.acquire(r.provider)
			for _, loss := range c.losses {
				switch loss {
				case "long":
					r.acquire(r.on(s, func(cfg *Config) { cfg.Services.Default.Term = 3 * time.Hour }))
				case "flush":
					s.Do(t, "FLUSHALL")
				case "init":
					mustInit(t, r.provider)
					continue
				default:
					s.Restart()
				}
				r.clock.Add(c.advance)
				if loss != "unseen restart" && loss != "long" {
					_, _ = r.provider.Acquire(testContext(t), provider.AcquireRequest{}) // notes it
				}
			}
			if c.until > 0 {
				until := r.clock.Load() + c.until
				r.clock.Add(1)
				r.fenced(r.provider, until, c.why)
				if r.lost(r.provider, before) != 0 {
					t.Error("Verify says that a lease is lost which the fence protects")
				}
				r.clock.Store(until - 1)
				r.fenced(r.provider, until, c.why)
				r.clock.Store(until)
			}
			if l := r.acquire(r.provider); l.ID == before.ID && l.Created < before.ReservedUntil {
				t.Errorf("%v was granted over %v", l, before)
			}
		})
	}
}

// longest is term and quarantine of the rig's pool, in ms.
var longest = (provider.DefaultTerms().Term + provider.DefaultTerms().Quarantine).Milliseconds()

// Only the pool's record is gone: those of slots count on, also when they last
// longer than the fence.
func TestLostPoolRecord(t *testing.T) {
	s := redistest.New(t)
	r := newRig(t, s, func(c *Config) {
		long := c.Services.Default.WithBitSeq(9)
		long.Term, long.IDs = 5*time.Hour, provider.IDRange{Low: 0, End: 1}
		c.Services.Named = map[string]provider.Terms{"long": long}
	})
	long, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{Service: "long"})
	must.Succeed(t, err)
	s.Do(t, "DEL", r.cfg.Prefix+"default:pool")
	p := r.on(s, func(c *Config) { c.Services.Named = nil })
	until := r.clock.Load() + p.cfg.longestMS(provider.DefaultPool)
	r.fenced(p, until, whyMissing)
	r.clock.Store(until)
	for range 2 { // of four machine IDs, two lie in the long one
		if l := r.acquire(p); l.Slot().Overlaps(long[0].Slot()) {
			t.Errorf("%v was granted over %v", l, long[0])
		}
	}
	_, err = p.Acquire(testContext(t), provider.AcquireRequest{})
	if _, ok := errors.AsType[*provider.FullError](err); !ok {
		t.Errorf("the error is %v, want a FullError", err)
	}
	// Its holder can still give it back.
	release := providertest.SignedRelease(long[0], r.clock.Load())
	release.BitSeq = provider.AnyBitSeq
	if err := p.Release(testContext(t), release); err != nil {
		t.Error(err)
	}
	r.clock.Add(1)
	r.acquire(p)
	if err := checkRings(s, r.cfg.Prefix+"default:"); err != nil {
		t.Error(err)
	}
}

func TestFailover(t *testing.T) {
	primary, replica := redistest.Pair(t)
	r := newRig(t, primary)
	known := r.acquire(r.provider)
	redistest.InStep(t, primary)
	redistest.CutOff(t, primary, replica)
	r.clock.Add(1000)
	lost := r.acquire(r.provider)
	primary.Kill()
	replica.Signal(resume)
	replica.Promote()
	r.clock.Add(1000)

	p := r.on(replica)
	until := r.clock.Load() + r.longest
	r.fenced(p, until, whyChanged)
	if r.lost(p, known, lost) != 0 {
		t.Error("Verify says that a lease is lost which the fence protects")
	}
	r.clock.Store(until)
	if r.lost(p, known) != 0 || r.lost(p, lost) != 1 {
		t.Error("Verify does not tell, once grants are made again, which lease was lost")
	}
	for range 4 {
		if l := r.acquire(p); l.Created < lost.ReservedUntil {
			t.Errorf("%v overlaps %v", l, lost)
		}
	}
}

// The same process is the primary, then a replica, then the primary again: its
// run_id has not changed, and yet it has taken over the data of another, also where it
// has forgotten by now that it was a replica.
func TestFailoverBack(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		a, b := redistest.Pair(t, "--repl-backlog-ttl", "1")
		r := newRig(t, a)
		r.acquire(r.provider)
		redistest.InStep(t, a)
		redistest.CutOff(t, a, b)
		lost := r.acquire(r.provider)
		// b is promoted without the last grant, and asked by no client.
		redistest.FailOverAndBack(t, a, b, forgets)
		until := r.clock.Load() + r.longest
		r.fenced(r.provider, until, whyChanged)
		r.clock.Store(until)
		if r.lost(r.provider, lost) != 1 {
			t.Error("nothing was lost: the test does not show what it should")
		}
	}
}

// A replica that comes or goes is no failover.
func TestReplicaComesAndGoes(t *testing.T) {
	primary, replica := redistest.NewWithPort(t, "--repl-backlog-ttl", "1"), redistest.NewWithPort(t)
	r := newRig(t, primary)
	ids := map[string]bool{}
	replID := func() string {
		_, after, _ := strings.Cut(primary.Do(t, "INFO", "replication"), "master_replid:")
		return after[:40]
	}
	ids[replID()] = true
	r.acquire(r.provider)
	replica.Follow(primary)
	ids[replID()] = true
	r.acquire(r.provider)
	replica.Promote()
	await.Success(t, "the backlog is dropped", func() error {
		if ids[replID()] {
			return errors.New("the replication ID is the same")
		}
		return nil
	})
	ids[replID()] = true
	r.acquire(r.provider)
	if len(ids) != 3 {
		t.Errorf("the replication ID was %v, want three values", ids)
	}
	primary.Restart()
	r.fenced(r.provider, r.clock.Load()+r.longest, whyMissing)
}

// A client with a longer term that comes after a failover may have lost grants
// of its own; one whose operator confirms every write has not.
func TestLongerTermAfterAFailover(t *testing.T) {
	for name, set := range map[string]bool{"fenced": false, "failover_fence=0": true} {
		t.Run(name, func(t *testing.T) {
			s := persistent(t)
			r := newRig(t, s, func(c *Config) { c.FailoverFenceSet = set })
			r.acquire(r.provider)
			s.Restart()
			from := r.clock.Load()
			if !set {
				r.fenced(r.provider, from+r.longest, whyChanged)
				r.clock.Store(from + r.longest)
			}
			r.acquire(r.provider)
			long := r.on(s, func(c *Config) { c.Services.Default.Term = 3 * time.Hour })
			if set {
				r.acquire(long)
				return
			}
			until := from + long.cfg.longestMS(provider.DefaultPool)
			r.fenced(long, until, whyChanged)
			r.fenced(r.provider, until, whyChanged)
			r.clock.Store(until)
			r.acquire(r.provider)
		})
	}
}

// A client with a longer term that only verifies makes the fence outlast its leases too.
func TestLongerTermThatIsVerified(t *testing.T) {
	s := persistent(t)
	r := newRig(t, s)
	long := r.on(s, func(c *Config) { c.Services.Default.Term = 3 * time.Hour })
	l := r.acquire(long)
	s.Do(t, "FLUSHALL")
	from := r.clock.Load()
	r.fenced(r.provider, from+r.longest, "")
	if n := r.lost(long, l); n != 0 {
		t.Errorf("%d leases are lost", n)
	}
	until := from + long.cfg.longestMS(provider.DefaultPool)
	r.fenced(r.provider, until, "")
	r.clock.Store(until)
	r.acquire(r.provider)
}

// A claim of no slot, from a client of a lease server, has no record, whatever layouts the
// pool has.
func TestVerifyOfWhatIsNoSlot(t *testing.T) {
	r := newRig(t, redistest.Shared(t), func(c *Config) {
		coarse := c.Services.Default.WithBitSeq(9)
		coarse.IDs = provider.IDRange{Low: 2, End: 4}
		c.Services.Named = map[string]provider.Terms{"coarse": coarse}
	})
	l := r.acquire(r.provider)
	if _, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{Service: "coarse"}); err != nil {
		t.Fatal(err)
	}
	none := provider.Claim{ID: 1, BitSeq: provider.AnyBitSeq, CreatedMS: 1, Signature: "x"}
	own := provider.ClaimOf(l)
	lost, err := r.provider.Verify(testContext(t), "", []provider.Claim{none, own, none})
	if err != nil || !slices.Equal(lost, []int{0, 2}) {
		t.Errorf("lost are %v, %v", lost, err)
	}
}
