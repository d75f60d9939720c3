package main

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

var (
	chaosFull = flag.Bool("chaos.full", false, "run all scenarios at their full size, as make chaos does")
	chaosSeed = flag.Uint64("chaos.seed", 1, "what the clocks, the victims and the pauses of a scenario are drawn from")
	chaosTerm = flag.Duration("chaos.term", 6*time.Second, "term of a lease, and its quarantine, in the full scenarios")
	chaosMany = flag.Int("chaos.daemons", 20, "daemons of a full scenario, besides the two whose clocks are an hour off")
)

const (
	// chaosTimeout is how long a request waits at most, and chaosGap how long a
	// host may be without an answer, its daemon's restart included.
	chaosTimeout = time.Second
	chaosGap     = 5 * chaosTimeout
	// chaosShort is the scenario that runs without -chaos.full.
	chaosShort = "redis-emptied"
)

// chaosScenario breaks a provider under running daemons, and mends it.
type chaosScenario struct {
	name, about string
	run         func(c *chaos)
}

var chaosScenarios = []chaosScenario{
	{"redis-failover", "the Redis primary is killed, and Sentinel promotes a replica", chaosRedisFailover},
	{"redis-emptied", "Redis is killed, and comes back without its data", chaosRedisEmptied},
	{"redis-frozen", "Redis is frozen for longer than a term", chaosRedisFrozen},
	{"etcd", "one of three etcd members is killed, then a second; then both come back", chaosEtcd},
	{"lease-server", "a lease server on SQLite is killed, and comes back", chaosLeaseServer},
	{"two-lease-servers", "of two lease servers on one Redis one is killed, then the other; then both come back", chaosTwoLeaseServers},
}

// chaos is one scenario that is being run.
type chaos struct {
	*site      // of the provider
	term       time.Duration
	daemons    int
	rng        *rand.Rand
	begun      time.Time
	url        string // of the provider, for the daemons
	hosts      []*chaosHost
	victims    []*chaosHost // hosts whose daemons will be killed, in this order
	stopAsking context.CancelFunc
	asking     sync.WaitGroup
	breaking   time.Time // before the provider was broken
	brokenMS   int64     // once it was
	record     chaosRecord
}

// TestChaos breaks providers under many daemons that issue IDs all the time.
// Without -chaos.full it is one short scenario, so that the test itself is kept
// in order.
func TestChaos(t *testing.T) {
	if *chaosMany < 2 || *chaosTerm < time.Second {
		t.Fatal("-chaos.daemons is 2 or more, and -chaos.term 1s or more")
	}
	var rows, found []string
	for _, s := range chaosScenarios {
		if !*chaosFull && s.name != chaosShort {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			c := &chaos{term: time.Second, daemons: 5, record: chaosRecord{gap: patience}}
			if *chaosFull {
				c.term, c.daemons, c.record.gap = *chaosTerm, *chaosMany, chaosGap
			}
			row := s.name + "\t\t\t\t\t\t\tnot finished\t"
			defer func() {
				if !t.Skipped() {
					rows = append(rows, row)
				}
			}()
			var violations []string
			row, violations = c.perform(t, s)
			found = append(found, violations...)
		})
	}
	if len(rows) == 0 {
		if *chaosFull {
			t.Fatal("-run names no scenario")
		}
		return
	}
	table := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nSCENARIO\tREGULAR\tFALLBACK\tTWICE\tOUT OF ORDER\tLONGEST GAP\tNORMAL AFTER\tRESULT\t")
	for _, row := range rows {
		fmt.Fprintln(table, row)
	}
	_ = table.Flush()
	for _, v := range found {
		t.Error(v)
	}
}

// perform runs a scenario, and returns its line of the table and what is to be
// said below that.
func (c *chaos) perform(t *testing.T, s chaosScenario) (row string, violations []string) {
	t.Helper()
	h := fnv.New64a()
	h.Write([]byte(s.name))
	c.site, c.begun, c.rng = newSite(t), time.Now(), rand.New(rand.NewPCG(*chaosSeed, h.Sum64()))
	c.say("%s: %s (seed %d, term and quarantine %v)", s.name, s.about, *chaosSeed, c.term)
	s.run(c)
	c.awaitRegular()
	c.pause(c.term) // all leases are renewed once more
	res := c.end()
	verdict := "ok"
	if len(res.violations) > 0 {
		verdict = "VIOLATED"
		t.Error("violated: see below the table")
		for _, v := range res.violations {
			violations = append(violations, s.name+": "+v)
		}
	}
	c.say("checked %d regular IDs (%d twice), the order of %d IDs on %d hosts (%d out of order), gaps (longest %v of %s, allowed %v), "+
		"the return to normal mode (last host %v after the provider was well), both outliers; fallback IDs that met: %d",
		res.regular, res.count[chaosTwice], res.regular+res.fallback, len(c.hosts), res.count[chaosUnordered], res.longestGap.Round(time.Millisecond), res.longestOf, c.record.gap,
		res.backAfter.Round(time.Millisecond), res.fallbackTwice)
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%v\t%v\t%s\t", s.name, res.regular, res.fallback, res.count[chaosTwice], res.count[chaosUnordered],
		res.longestGap.Round(time.Millisecond), res.backAfter.Round(10*time.Millisecond), verdict), violations
}

// now is the time since the scenario began.
func (c *chaos) now() time.Duration { return time.Since(c.begun) }

// say writes a line of the transcript.
func (c *chaos) say(format string, args ...any) {
	fmt.Fprintf(c.t.Output(), "%7.3fs  %s\n", c.now().Seconds(), fmt.Sprintf(format, args...))
}

// pause lets the hosts go on for d, and up to a fifth more.
func (c *chaos) pause(d time.Duration) { pause(c.t, d+time.Duration(c.rng.Int64N(int64(d)/5))) }

// outage lasts until every lease has ended and every host has lived from
// fallback for longer than it may be silent.
func (c *chaos) outage() { c.pause(c.term + chaosGap) }

// terms are the parameters of every provider's URL. There are just enough
// machine IDs for all hosts to renew at once: what is granted twice is likely to
// be of those in use.
func (c *chaos) terms() string {
	return fmt.Sprintf("term=%v&quarantine=%v&ids=0-%d", c.term, c.term, 2*(c.daemons+2)-1)
}

// breaks has f end all granting. What was granted before has ended a term later.
func (c *chaos) breaks(f func()) {
	c.breaking = time.Now()
	f()
	c.brokenMS = time.Now().UnixMilli()
}

// mends has f put the provider right: from then on leases are granted.
func (c *chaos) mends(f func()) {
	c.granting(time.Now())
	f()
	c.record.mended = c.now()
}

// granting notes that leases are granted again from then on, not earlier.
func (c *chaos) granting(from time.Time) {
	// Some leases begin by their holder's clock.
	skew := (c.term * chaosSkewPercent / 100).Milliseconds()
	r := &c.record
	r.quietFrom = c.brokenMS + c.term.Milliseconds() + skew
	r.quietTo = from.UnixMilli() - skew
	r.backFrom = max(r.quietFrom, r.quietTo+2*skew)
	r.mended = c.now()
}

// fence is how long Redis refuses grants after it may have forgotten some.
func (c *chaos) fence() time.Duration { return 2 * c.term }
