package capacity

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// span is a time of a world, for people.
func span(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

var seed = flag.Uint64("capacity.seed", 1, "from which all random numbers of a run are drawn")

// with is the terms on a pool of so many slots.
func with(t provider.Terms, slots int) provider.Terms {
	t.IDs = provider.IDRange{Low: 0, End: int64(slots)}
	return t
}

// part divides hosts and slots alike where a pool is full for long: each refusal looks at all of
// its slots.
const part = 4

// play runs the scenario in memory, on a pool of so many slots.
func play(s scenario, slots int) *world {
	s.terms = with(s.terms, slots)
	w := newWorld(*seed, s, inMemory(s.terms))
	w.run()
	return w
}

// TestSevenThousandHosts: 7,000 hosts fit on the default pool, with restarts and
// deployments (the whole day is in TestTables), and also where they start within 5
// minutes, and so renew within the same 5 minutes of every nine: none takes a second
// slot for longer than its renewal takes. If old leases were kept to their end, they
// would take more than 8,192 slots, be refused, lose their leases with the slots in
// quarantine, and never recover.
func TestSevenThousandHosts(t *testing.T) {
	ring.All(t)
	together := calm(7000 / part)
	together.length, together.startOver, together.releaseTakes = 40*minute, 5*minute, second
	for name, test := range map[string]struct {
		scenario
		slots int
	}{"busy": {busy(7000, 90*minute), slots}, "started together": {together, slots / part}} {
		w := play(test.scenario, test.slots)
		if w.fault != "" {
			t.Error(w.fault)
		}
		peak := w.demand().peak(test.hosts)
		if peak > test.slots {
			t.Errorf("%s: seed %d: %d of %d slots were taken", name, *seed, peak, test.slots)
		}
		t.Logf("%s: %d acquires, %d failed; at most %d of %d slots were taken at a time", name, w.acquires, w.failed, peak, test.slots)
	}
}

// TestAllHostsAtOnce: where they start in the same moment, half of them have to
// wait when they renew, and have their turn before their leases end.
func TestAllHostsAtOnce(t *testing.T) {
	ring.All(t)
	s := calm(7000 / part)
	s.length, s.startOver, s.releaseTakes = 40*minute, 0, second
	w := play(s, slots/part)
	if w.failed == 0 || w.gaps > 0 || w.lastFailed > 10*minute {
		t.Errorf("seed %d: %d acquires failed, the last after %v, and a host was without a lease %d times",
			*seed, w.failed, span(w.lastFailed), w.gaps)
	}
}

// TestRecoveryFromTooManyHosts: once the hosts in excess are gone, a quarantine
// and a longest wait between two tries later every host has a lease.
func TestRecoveryFromTooManyHosts(t *testing.T) {
	ring.WithoutRace(t)
	s := calm(540)
	s.length, s.guests, s.guestsLeave = 2*hour, 80, 39*minute // of 512 slots 105%, then 90%
	w := play(s, 512)
	if limit := s.guestsLeave + minute + s.terms.Quarantine.Milliseconds() + 66*second; w.gaps == 0 || w.lastGap > limit {
		t.Errorf("seed %d: a host lost its lease %d times, and none was without one after %v", *seed, w.gaps, span(w.lastGap))
	}
}

// TestTooFewSlots: the simulation notices when there are too many hosts, and when
// nothing is handed back: each lease would take its slot for its quarantine too.
func TestTooFewSlots(t *testing.T) {
	ring.WithoutRace(t)
	kept := calm(7000)
	kept.keepReleases = true
	for name, s := range map[string]scenario{"8,300 hosts": calm(8300), "7,000 hosts without hand-back": kept} {
		s.stopAtFault = true
		w := play(s, slots)
		if w.failed == 0 || !strings.Contains(w.fault, "all 8192 machine IDs") {
			t.Errorf("%s fit on %d slots, or failed in another way: %q", name, slots, w.fault)
		}
	}
}

// rough is all that can happen to a host.
func rough() scenario {
	s := busy(0, 8*hour)
	s.crashes, s.lost = 0.2, 0.5
	return s
}

// TestFitIsExact holds what doc.go says of how the largest number is found.
func TestFitIsExact(t *testing.T) {
	ring.All(t)
	const pool = 256
	s := rough()
	s.hosts = 260
	d, _ := measure(*seed, s)
	fit := d.fit(pool)
	if fit < 200 || fit >= s.hosts {
		t.Fatalf("seed %d: %d hosts fit on %d slots", *seed, fit, pool)
	}
	s.hosts = fit
	d, roomy := measure(*seed, s)
	w := play(s, pool)
	if w.fault != "" {
		t.Error(w.fault)
	}
	if w.trace != roomy.trace {
		t.Errorf("seed %d: the run depends on the number of slots although they suffice", *seed)
	}
	records, err := w.provider.List(context.Background(), "service0")
	must.Succeed(t, err)
	taken := 0
	for _, r := range records {
		if r.End > w.nowMS() {
			taken++
		}
	}
	if want := d.taken(w.nowMS()); taken != want {
		t.Errorf("seed %d: the provider has %d slots taken at the end, and %d were counted", *seed, taken, want)
	}
	s.hosts++
	s.stopAtFault = true
	if w = play(s, pool); w.failed == 0 {
		t.Errorf("seed %d: %d hosts fit on %d slots, and so does one more", *seed, fit, pool)
	}
}

// TestPollsChangeNothing: a keeper that is woken only when something is due does the same
// as a keeper that looks every second. The slots are too few, so that refusals and waits
// after them are compared as well.
func TestPollsChangeNothing(t *testing.T) {
	ring.All(t)
	s := rough()
	s.hosts, s.length, s.services, s.startOver = 15, 90*minute, 2, 4*minute
	for _, slots := range []int{28, 31} {
		rare := play(s, slots)
		s.everyPoll = true
		often := play(s, slots)
		s.everyPoll = false
		if rare.trace != often.trace {
			t.Errorf("seed %d, %d slots: %d acquires, %d failed, when woken every second: %d, %d",
				*seed, slots, rare.acquires, rare.failed, often.acquires, often.failed)
		}
		if rare.failed == 0 {
			t.Errorf("seed %d, %d slots: none was refused", *seed, slots)
		}
	}
}

// TestSeedRepeatsARun: or a failure could not be looked at again.
func TestSeedRepeatsARun(t *testing.T) {
	s := rough()
	s.hosts, s.length = 50, 2*hour
	sum := func(seed uint64) string {
		w := newWorld(seed, s, inMemory(s.terms))
		w.run()
		return fmt.Sprintf("%d acquires, %x", w.acquires, w.trace)
	}
	if first, second := sum(*seed), sum(*seed); first != second {
		t.Errorf("seed %d gives %s, then %s", *seed, first, second)
	}
	if first, other := sum(*seed), sum(*seed+1); first == other {
		t.Errorf("seeds %d and %d give the same: %s", *seed, *seed+1, first)
	}
}
