package generator

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// player asks a generator for IDs in all the ways there are, and holds every
// answer against the rules.
type player struct {
	*Generator
	clock    *handClock
	latest   int64 // of all that the clock has shown
	stepped  bool  // the clock went back
	readings []Reading
	held     []lease.Lease
	ever     []lease.Lease
	pendings []*Pending

	last  snowflake.ID // that a Start returned
	seen  map[snowflake.ID]bool
	perMS map[int64]int64
}

func (p *player) move(d int64) {
	p.clock.now.Add(d)
	p.stepped = p.stepped || p.clock.now.Load() < p.latest
	p.latest = max(p.latest, p.clock.now.Load())
}

// take records the IDs of one request. Those of a regular kind must lie in one
// of the leases.
func (p *player) take(t *rapid.T, ranges []Range, leases []lease.Lease) (first, last snowflake.ID, n int64) {
	for _, r := range ranges {
		for i := range r.Count {
			id := r.Start + snowflake.ID(i)
			if n++; n == 1 {
				first = id
			} else if id <= last {
				t.Fatalf("%d after %d in one answer", id, last)
			}
			last = id
			ms := testTimeline.UnixMS(id)
			if p.perMS[ms]++; p.seen[id] || p.perMS[ms] > p.core.cfg.MaxThroughput {
				t.Fatalf("%d was given out before, or is one too many of its millisecond", id)
			}
			p.seen[id] = true
			if r.Kind == Regular && !covered(leases, ms, testTimeline.Low(id)) {
				t.Fatalf("no lease allows %d: ms %d, low %d", id, ms, testTimeline.Low(id))
			}
		}
	}
	return first, last, n
}

func covered(leases []lease.Lease, ms, low int64) bool {
	for _, l := range leases {
		if s := l.Slot(); l.Allows(ms) && s.Start <= low && low < s.End {
			return true
		}
	}
	return false
}

func (p *player) start(t *rapid.T) {
	var at Reading
	if n := len(p.readings); n > 0 && rapid.Bool().Draw(t, "burst") {
		at = p.readings[max(n-1-rapid.IntRange(0, 3).Draw(t, "old"), 0)]
	}
	req := Request{
		Count: rapid.Int64Range(1, 12).Draw(t, "count"), RegularOnly: rapid.Bool().Draw(t, "regular only"),
	}
	if rapid.IntRange(0, 2).Draw(t, "patient") == 0 {
		req.Timeout = time.Hour
	}
	ranges, pending, err := p.Start(at, req, nil)
	var timeout *TimeoutError
	var backward *ClockBackwardError
	switch {
	case pending != nil:
		if err != nil || ranges != nil || req.Timeout == 0 {
			t.Fatalf("%v, %v and something to wait for", ranges, err)
		}
		p.pendings = append(p.pendings, pending)
	case err == nil:
		first, last, n := p.take(t, ranges, p.held)
		if n != req.Count || first <= p.last {
			t.Fatalf("%d IDs from %d on, want %d above %d", n, first, req.Count, p.last)
		}
		p.last = last
		if from := testTimeline.UnixMS(first); !p.stepped && (from < at.ms() || testTimeline.UnixMS(last) > p.clock.ms()) {
			t.Fatalf("IDs embed %d to %d, the reading is %d and the time %d", from, testTimeline.UnixMS(last), at.ms(), p.clock.ms())
		}
	case errors.As(err, &timeout):
		if req.Timeout != 0 || (len(p.q.waiting) == 0 && p.core.ms < p.clock.ms()) {
			t.Fatalf("%v at %d, and the last millisecond in use is %d", err, p.clock.ms(), p.core.ms)
		}
		p.forfeit(ranges)
	case errors.As(err, &backward) && !p.stepped:
		t.Fatal(err)
	default:
		if covered(p.held, p.clock.ms(), p.core.low+1) && p.core.ms < p.clock.ms() && !p.stepped {
			t.Fatalf("%v at %d", err, p.clock.ms())
		}
		p.forfeit(ranges)
	}
}

// run asks by Run, which has nothing but regular IDs of the present millisecond.
func (p *player) run(t *rapid.T) {
	want := rapid.Int64Range(0, 12).Draw(t, "count")
	r := p.Run(p.Read(), want)
	if r.Count == 0 {
		return
	}
	if len(p.q.waiting) > 0 {
		t.Fatalf("%v was given out past those who wait", r)
	}
	first, last, n := p.take(t, []Range{r}, p.held)
	if ms := testTimeline.UnixMS(first); r.Kind != Regular || n > want || first <= p.last || ms != p.clock.ms() {
		t.Fatalf("%v of %d after %d; it embeds %d, and the time is %d", r, want, p.last, ms, p.clock.ms())
	}
	p.last = last
}

// forfeit notes what a failed batch had taken: no request gets it.
func (p *player) forfeit(ranges []Range) {
	for _, r := range ranges {
		for i := range r.Count {
			p.seen[r.Start+snowflake.ID(i)] = true
		}
		p.last = max(p.last, r.Start+snowflake.ID(r.Count-1))
	}
}

func (p *player) collect(t *rapid.T, all bool) {
	left := p.pendings[:0]
	for _, pending := range p.pendings {
		select {
		case <-pending.done:
		default:
			if !all {
				left = append(left, pending)
				continue
			}
		}
		ranges, err := pending.Wait(context.Background())
		if err != nil && ranges != nil {
			t.Fatalf("%v and %v", ranges, err)
		}
		if _, _, n := p.take(t, ranges, p.ever); err == nil && n != pending.req.Count {
			t.Fatalf("%d IDs, want %d", n, pending.req.Count)
		}
	}
	p.pendings = left
}

// TestGeneratorKeepsTheRules: with bursts on old readings, requests that wait, leases that come
// and go, and a clock that jumps.
func TestGeneratorKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		c := &handClock{}
		c.now.Store((testEpoch + 500) * int64(time.Millisecond))
		p := &player{clock: c, latest: c.now.Load(), seen: map[snowflake.ID]bool{}, perMS: map[int64]int64{}}
		p.Generator = New(Options{
			Config: cfg, Timeline: testTimeline, Clock: c, Mark: &mark{},
			Rand: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)),
		})
		p.wake = time.AfterFunc(time.Hour, func() {}) // the test says when it fires
		defer p.Stop()
		jumps := rapid.Bool().Draw(t, "jumps")
		t.Repeat(map[string]func(*rapid.T){
			"tick": func(t *rapid.T) { p.move(rapid.Int64Range(0, 2_500_000).Draw(t, "ns")) },
			"jump": func(t *rapid.T) {
				if jumps {
					p.move(rapid.Int64Range(-30_000_000, 30_000_000).Draw(t, "ns"))
				}
			},
			"read": func(*rapid.T) { p.readings = append(p.readings, p.Read()) },
			"leases": func(t *rapid.T) {
				p.held = drawLeases(t, c.ms(), 5)
				p.ever = append(p.ever, p.held...)
				p.Update(p.held, nil, nil)
			},
			"start":  p.start,
			"start ": p.start, // more often than the rest
			"run":    p.run,
			"wake": func(t *rapid.T) {
				p.serve()
				p.collect(t, false)
			},
		})
		p.Stop()
		p.collect(t, true)
		if n := p.Stats().BackwardEvents; n > 0 && !p.stepped {
			t.Fatalf("%d backward clock events on a clock that never went back", n)
		}
	})
}
