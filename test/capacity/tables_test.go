package capacity

import (
	"flag"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"
)

var full = flag.Bool("capacity.full", false, "run whole days and print the tables of docs/capacity.md")

// TestTables prints what docs/capacity.md shows.
func TestTables(t *testing.T) {
	if !*full {
		t.Skip("make capacity runs it")
	}
	t.Run("seven thousand hosts", sevenThousand)
	t.Run("five percent crash", fivePercent)
	t.Run("formula", formula)
	t.Run("hosts that start together", together)
	t.Run("too many hosts", tooMany)
}

// sevenThousand is the day that the default pool is made for.
func sevenThousand(t *testing.T) {
	w := play(busy(7000, day), slots)
	if w.fault != "" {
		t.Error(w.fault)
	}
	t.Logf("7,000 hosts on 8,192 slots, a day, restarts and two deployments: %d acquires, %d failed, at most %d slots taken, "+
		"no lease had less than %v left when the next one came",
		w.acquires, w.failed, w.demand().peak(w.hosts), span(w.closest))
}

// fivePercent prints the figure that fits when hosts crash, and plays the day
// with so many.
func fivePercent(t *testing.T) {
	days := []struct {
		name string
		scenario
	}{
		{"restarts and two deployments", busy(8300, day)},
		{"nothing else happens", calm(8300)},
	}
	for _, c := range days {
		c.crashes = 0.05
		says := c.formula(slots)
		d, _ := measure(*seed, c.scenario)
		c.hosts = d.fit(slots)
		w := play(c.scenario, slots)
		if w.fault != "" {
			t.Error(w.fault)
		}
		t.Logf("5%% of the hosts crash each hour, their state is lost; a day; %s: %d hosts fit on %d slots (%d acquires, %d failed), "+
			"the formula says %.0f on average", c.name, c.hosts, slots, w.acquires, w.failed, says)
	}
}

// formula compares the largest number of hosts with the formula's.
func formula(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%8s %10s %8s %6s %11s %8s %8s %6s\n", "services", "leases of", "term", "quar.", "crashes/h", "formula", "measured", "")
	row := func(services int, leases int64, term, quarantine time.Duration, crashes float64) {
		s := calm(0)
		s.services, s.leases, s.crashes = services, leases, crashes
		s.terms.Term, s.terms.Quarantine = term, quarantine
		s.length, s.startOver = 6*hour, period(s.terms)
		says := s.formula(slots)
		s.hosts = int(says) + int(says)/50
		d, w := measure(*seed, s)
		if w.fault != "" {
			t.Error(w.fault)
		}
		fit := d.fit(slots)
		fmt.Fprintf(&table, "%8d %10d %8v %6v %10.0f%% %8.0f %8d %5.1f%%\n", services, leases, term, quarantine, crashes*100,
			says, fit, (float64(fit)/says-1)*100)
		if r := float64(fit) / says; r < 0.97 || r > 1.005 {
			t.Errorf("seed %d: %d hosts fit, and the formula says %.0f", *seed, fit, says)
		}
	}
	const m = time.Minute
	for _, crashes := range []float64{0, 0.01, 0.05, 0.2} {
		row(1, 1, 10*m, 10*m, crashes)
	}
	row(1, 1, 10*m, 0, 0.05)
	row(1, 1, 10*m, 0, 0.2)
	for _, term := range []time.Duration{5 * m, 30 * m} {
		for _, crashes := range []float64{0, 0.05, 0.2} {
			row(1, 1, term, term, crashes)
		}
	}
	row(3, 1, 10*m, 10*m, 0)
	row(3, 1, 10*m, 10*m, 0.05)
	row(1, 4, 10*m, 10*m, 0)
	row(1, 4, 10*m, 10*m, 0.05)
	t.Logf("the largest number of hosts on %d slots, 6 hours\n%s", slots, table.String())
}

// together shows the cost of hosts that start together: from then on they renew together, and
// each takes two slots for as long as its release takes.
func together(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%14s %14s | %16s | %16s\n", "start within", "release takes", "none is refused", "all keep a lease")
	for _, over := range []int64{0, second, 10 * second, minute, 5 * minute} {
		for _, takes := range []int64{second / 10, second} {
			s := calm(slots + 100)
			s.length, s.startOver, s.releaseTakes = 40*minute, over, takes
			d, _ := measure(*seed, s)
			const step = 100
			s.stopAtGap = true
			kept := step * sort.Search(slots/step, func(i int) bool {
				s.hosts = step * (i + 1)
				return play(s, slots).gaps > 0
			})
			fit := d.fit(slots)
			fmt.Fprintf(&table, "%14v %14v | %16d | %16d\n", span(over), span(takes), fit, max(fit, kept))
		}
	}
	t.Logf("hosts that start together, on %d slots\n%s", slots, table.String())
}

// tooMany shows what becomes of a pool that has too few slots for half an hour.
func tooMany(t *testing.T) {
	for _, quarantine := range []time.Duration{10 * time.Minute, 0} {
		for _, share := range []float64{1.01, 1.05} {
			s := calm(int(share * slots))
			s.terms.Quarantine = quarantine
			s.guestsLeave = s.startOver + hour/2
			s.length, s.guests = s.guestsLeave+hour, s.hosts-slots*9/10
			s.terms = with(s.terms, slots)
			w := newWorld(*seed, s, inMemory(s.terms))
			most := 0
			for at := s.startOver; at < s.guestsLeave; at += minute {
				w.at(at, func() { most = max(most, w.without()) })
			}
			w.run()
			t.Logf("%d hosts on %d slots for half an hour, then %d; quarantine %v: at most %d were without a lease, and none from %v after the others left",
				s.hosts, slots, s.hosts-s.guests, quarantine, most, span(max(w.lastGap-s.guestsLeave, 0)).Round(time.Second))
		}
	}
}
