package redis_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestLeasesAfterARestart(t *testing.T) {
	s := persistent(t)
	p := newPool(t, s)
	l, m := p.acquire(p.provider), p.acquire(p.provider)
	request := provider.AcquireRequest{RequestID: provider.NewSecret()}
	_, err := p.provider.Acquire(p.context(), request)
	must.Succeed(t, err)
	s.Restart()
	until := p.clock.Load() + longest
	p.fenced(p.provider, until, whyChanged)
	// A repeated request is no exception: its grant may have been given back, its
	// slot granted to another, and both forgotten.
	var fenced *provider.FencedError
	if leases, err := p.provider.Acquire(p.context(), request); !errors.As(err, &fenced) {
		t.Errorf("repeated behind a restart: %v, %v", leases, err)
	}
	// What the store knows goes on: leases are their holders', and can be given back. None
	// is extended.
	if p.lost(p.provider, l, m) != 0 {
		t.Error("Verify says that a lease is lost which the store has")
	}
	p.clock.Add(1000)
	if longer, err := provider.Extend(p.context(), p.provider, "", l); !errors.As(err, &fenced) || fenced.UntilMS != until {
		t.Errorf("extended behind a restart: %v, %v", longer, err)
	}
	must.Succeed(t, p.provider.Release(p.context(), providertest.SignedRelease(m, p.clock.Load())))
	p.fenced(p.provider, until, whyChanged)
	p.clock.Store(until)
	next := p.acquire(p.provider) // no more fence
	s.Restart()
	// The extension is the first to notice.
	if longer, err := provider.Extend(p.context(), p.provider, "", next); !errors.As(err, &fenced) || fenced.UntilMS != until+longest {
		t.Errorf("extended behind another restart: %v, %v", longer, err)
	}
	p.fenced(p.provider, until+longest, whyChanged)
}

// What follows from a loss, a restart, or both, and when it ends. Terms, the clock and the
// fence that is set are those of the client that finds it.
// Seeds 000-11.1-1 and 001-3.
func TestLeasesAreFenced(t *testing.T) {
	const minute, hour = 60_000, 3600_000
	if longest != 20*minute { // which seed 000-11.1-1 names
		t.Errorf("the longest grant takes %d ms", longest)
	}
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
		"init after a loss":              {-1, []string{"flush", "init"}, 0, 0, ""},
		"init before any request":        {-1, []string{"unseen restart", "init"}, 0, 0, ""},
		"restart after init":             {-1, []string{"restart", "init", "restart"}, 0, longest, whyChanged},
	} {
		t.Run(name, func(t *testing.T) {
			s := persistent(t)
			p := newPool(t, s, func(o *options) { o.FailoverFence, o.FailoverFenceSet = max(c.fence, 0), c.fence >= 0 })
			before := p.acquire(p.provider)
			for _, loss := range c.losses {
				switch loss {
				case "long":
					p.acquire(p.on(s, longTerm))
				case "flush":
					s.Do(t, "FLUSHALL")
				case "init":
					p.init()
					continue
				default:
					s.Restart()
				}
				p.clock.Add(c.advance)
				if loss != "unseen restart" && loss != "long" {
					_, _ = p.provider.Acquire(p.context(), provider.AcquireRequest{}) // notes it
				}
			}
			if c.until > 0 {
				until := p.clock.Load() + c.until
				p.clock.Add(1)
				p.fenced(p.provider, until, c.why)
				if p.lost(p.provider, before) != 0 {
					t.Error("Verify says that a lease is lost which the fence protects")
				}
				p.clock.Store(until - 1)
				p.fenced(p.provider, until, c.why)
				p.clock.Store(until)
			}
			// Where the operator has said that nothing is missing, a lost lease may be granted over.
			declared := slices.Contains(c.losses, "flush") && slices.Contains(c.losses, "init")
			if l := p.acquire(p.provider); l.ID == before.ID && l.Created < before.ReservedUntil && !declared {
				t.Errorf("%v was granted over %v", l, before)
			}
		})
	}
}

// Only the area's record is gone: those of blocks count on, also when they last longer than the
// fence.
func TestLeasesOutliveTheAreasRecord(t *testing.T) {
	s := redistest.New(t)
	p := newPool(t, s, func(o *options) {
		long := o.services.Default.WithBitSeq(9)
		long.Term, long.IDs = 5*time.Hour, provider.IDRange{Low: 0, End: 1}
		o.services.Named = map[string]provider.Terms{"long": long}
	})
	long, err := p.provider.Acquire(p.context(), provider.AcquireRequest{Service: "long"})
	must.Succeed(t, err)
	s.Do(t, "DEL", p.options.Prefix+"@leases")
	other := p.on(s, func(o *options) { o.services.Named = nil })
	until := p.clock.Load() + longest
	p.fenced(other, until, whyMissing)
	p.clock.Store(until)
	for range 2 { // of four machine IDs, two lie in the long one
		if l := p.acquire(other); l.Slot().Overlaps(long[0].Slot()) {
			t.Errorf("%v was granted over %v", l, long[0])
		}
	}
	_, err = other.Acquire(p.context(), provider.AcquireRequest{})
	if _, ok := errors.AsType[*provider.FullError](err); !ok {
		t.Errorf("the error is %v, want a FullError", err)
	}
	// Its holder can still give it back.
	release := providertest.SignedRelease(long[0], p.clock.Load())
	release.BitSeq = provider.AnyBitSeq
	must.Succeed(t, other.Release(p.context(), release))
	p.clock.Add(1)
	p.acquire(other)
}

// An older file of the server's is put back: it lacks the latest grant.
func TestLeasesFromAnOldFile(t *testing.T) {
	s := redistest.New(t)
	p := newPool(t, s)
	known := p.acquire(p.provider)
	s.Do(t, "SAVE")
	lost := p.acquire(p.provider)
	s.Restart()
	until := p.clock.Load() + longest
	p.fenced(p.provider, until, whyChanged)
	if p.lost(p.provider, known, lost) != 0 {
		t.Error("Verify says that a lease is lost which the fence protects")
	}
	p.clock.Store(until)
	if p.lost(p.provider, known) != 0 || p.lost(p.provider, lost) != 1 {
		t.Error("Verify does not tell, once grants are made again, which lease was lost")
	}
}

// A replica that lacks the last grant becomes the primary: nothing is granted over it before it has ended.
// Seeds 001-18 and 001-25.
func TestLeasesAfterAFailover(t *testing.T) {
	primary, replica := redistest.Pair(t)
	p := newPool(t, primary)
	known := p.acquire(p.provider)
	redistest.InStep(t, primary)
	redistest.CutOff(t, primary, replica)
	p.clock.Add(1000)
	lost := p.acquire(p.provider)
	primary.Kill()
	replica.Signal(resume)
	replica.Promote()
	p.clock.Add(1000)

	other := p.on(replica)
	until := p.clock.Load() + longest
	p.fenced(other, until, whyChanged)
	if p.lost(other, known, lost) != 0 {
		t.Error("Verify says that a lease is lost which the fence protects")
	}
	p.clock.Store(until)
	if p.lost(other, known) != 0 || p.lost(other, lost) != 1 {
		t.Error("Verify does not tell, once grants are made again, which lease was lost")
	}
	for range 4 {
		if l := p.acquire(other); l.Created < lost.ReservedUntil {
			t.Errorf("%v overlaps %v", l, lost)
		}
	}
}

// A replica that comes or goes is no failover.
func TestReplicaComesAndGoes(t *testing.T) {
	primary, replica := redistest.NewWithPort(t, "--repl-backlog-ttl", "1"), redistest.NewWithPort(t)
	p := newPool(t, primary)
	ids := map[string]bool{}
	replID := func() string {
		_, after, _ := strings.Cut(primary.Do(t, "INFO", "replication"), "master_replid:")
		return after[:40]
	}
	ids[replID()] = true
	p.acquire(p.provider)
	replica.Follow(primary)
	ids[replID()] = true
	p.acquire(p.provider)
	replica.Promote()
	await.Success(t, "the backlog is dropped", func() error {
		if ids[replID()] {
			return errors.New("the replication ID is the same")
		}
		return nil
	})
	ids[replID()] = true
	p.acquire(p.provider)
	if len(ids) != 3 {
		t.Errorf("the replication ID was %v, want three values", ids)
	}
	primary.Restart()
	p.fenced(p.provider, p.clock.Load()+longest, whyMissing)
}

// A client with a longer term that comes after a restart may have lost grants of its own, also
// if it only verifies. A client has not where its operator confirms every write.
func TestLongerTermAfterARestart(t *testing.T) {
	for name, set := range map[string]bool{"fenced": false, "failover_fence=0": true} {
		t.Run(name, func(t *testing.T) {
			s := persistent(t)
			p := newPool(t, s, func(o *options) { o.FailoverFenceSet = set })
			p.acquire(p.provider)
			s.Restart()
			from := p.clock.Load()
			if !set {
				p.fenced(p.provider, from+longest, whyChanged)
				p.clock.Store(from + longest)
			}
			l := p.acquire(p.provider)
			long := p.on(s, longTerm)
			if p.lost(long, l) != 0 { // it verifies
				t.Error("a lease is lost that the store has")
			}
			if set {
				p.acquire(long)
				return
			}
			until := from + 3*time.Hour.Milliseconds() + longest/2
			p.fenced(p.provider, until, whyChanged)
			p.fenced(long, until, whyChanged)
			p.clock.Store(until)
			p.acquire(p.provider)
		})
	}
}
