package redis_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// What follows from a loss, a restart, or both, and when it ends. Terms, the clock and the
// fence that is set are those of the client that finds it.
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
		"init after a loss":              {-1, []string{"flush", "init"}, 0, 0, ""}, // seed 001-3
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

// A replica that lacks the last grant becomes the primary: nothing is granted over it before it has ended.
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
		if l := p.acquire(other); l.Created < lost.ReservedUntil { // seeds 001-18 and 001-25
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
