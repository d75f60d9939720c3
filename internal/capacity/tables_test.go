package capacity

import (
	"flag"
	"fmt"
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
	t.Run("all at once", allAtOnce)
	t.Run("on SQLite", sevenThousandOnSQLite)
}

// sevenThousand is the day that the default pool is made for.
func sevenThousand(t *testing.T) {
	s := busy(7000, day)
	d, w := measure(*seed, s)
	if w.fault != "" {
		t.Error(w.fault)
	}
	peak := d.peak(s.hosts)
	if peak > slots {
		t.Errorf("seed %d: 7,000 hosts need %d slots", *seed, peak)
	}
	t.Logf("7,000 hosts, a day, restarts and two deployments: %d acquires, %d failed, at most %d of %d slots taken, "+
		"no lease had less than %v left when the next one came",
		w.acquires, w.failed, peak, slots, time.Duration(w.closest)*time.Millisecond)
}

// fivePercent prints the figure that fits when hosts crash.
func fivePercent(t *testing.T) {
	days := []struct {
		name string
		scenario
	}{
		{"restarts and two deployments", busy(7500, day)},
		{"nothing else happens", calm(7500)},
	}
	for _, c := range days {
		c.crashes = 0.05
		d, w := measure(*seed, c.scenario)
		if w.fault != "" {
			t.Error(w.fault)
		}
		t.Logf("5%% of the hosts crash each hour, their state is lost; a day; %s: %d hosts fit on %d slots, the formula says %.0f on average",
			c.name, d.fit(slots), slots, c.formula(slots))
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
		if r := float64(fit) / says; r < 0.95 || r > 1.01 {
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

// allAtOnce shows what it costs that hosts start together: from then on they
// renew together. The second half is at an eighth of the scale.
func allAtOnce(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%14s %6s | %8s | %9s %8s %10s %14s\n", "start within", "quar.", "fit", "acquires", "refused", "no lease", "last refusal")
	row := func(over int64, quarantine time.Duration) {
		s := calm(7600)
		s.length, s.startOver, s.terms.Quarantine = hour, over, quarantine
		d, _ := measure(*seed, s)
		s.hosts, s.length = 7000/8, 3*hour
		w := play(s, slots/8)
		last := "-"
		if w.failed > 0 {
			last = (time.Duration(w.lastFailed) * time.Millisecond).Round(time.Minute).String()
		}
		fmt.Fprintf(&table, "%14v %6v | %8d | %9d %8d %10d %14s\n", time.Duration(over)*time.Millisecond, quarantine,
			d.fit(slots), w.acquires, w.failed, w.gaps, last)
	}
	for _, over := range []int64{1, 3, 5, 6, 7, 9, 10, 15, 30} {
		row(over*minute, 10*time.Minute)
	}
	row(5*minute, 5*time.Minute)
	row(5*minute, 0)
	t.Logf("hosts that start together: how many fit on %d slots, and what happens to 875 on 1,024 in 3 hours\n%s", slots, table.String())
}

// sevenThousandOnSQLite compares half an hour on a real file, and on the real
// number of slots, with the same half hour in memory.
func sevenThousandOnSQLite(t *testing.T) {
	s := busy(7000, 30*minute)
	s.waves = nil
	s.crashes = 0.05
	_, want := measure(*seed, s)
	s.terms = with(s.terms, slots)
	began := time.Now()
	w := newWorld(*seed, s, onDisk(t, s.terms))
	w.run()
	if w.fault != "" {
		t.Error(w.fault)
	}
	if w.trace != want.trace {
		t.Errorf("seed %d: SQLite granted otherwise than the provider in memory", *seed)
	}
	t.Logf("7,000 hosts on SQLite, 8,192 slots, 30 minutes, 5%% crash each hour: %d acquires, %d failed, the same as in memory; took %v",
		w.acquires, w.failed, time.Since(began).Round(time.Second))
}
