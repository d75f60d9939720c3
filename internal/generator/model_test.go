package generator

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// A small layout, so that a naive model can look at every value: 6 low bits.
const (
	testBitTS = 57
	testEpoch = int64(1_000_000)
)

var testTimeline = snowflake.Timeline{EpochMS: testEpoch, BitTS: testBitTS}

func testLease(id int64, bitSeq int, created, expired int64) lease.Lease {
	return lease.Lease{
		ID: id, Created: created, Expired: expired, ReservedUntil: expired + (expired - created),
		Secret: "s", EpochMS: testEpoch, BitReserve: 1, BitTS: testBitTS,
		BitID: snowflake.ValueBits - testBitTS - bitSeq, BitSeq: bitSeq,
	}
}

// model is the generator as one would explain it to a child: it remembers
// everything and tries every value.
type model struct {
	cfg    Config
	held   []lease.Lease
	cached *lease.Lease
	floor  int64
	lastMS int64
	low    int64
	perMS  map[int64]int64
}

// candidates are the low bits that an ID embedding ms may have, and whether
// they are a fallback's; none at all with ok = false means an error.
func (m *model) candidates(ms int64, allowFallback bool) (lows []int64, kind Kind, ok bool) {
	add := func(s snowflake.Slot, flag int64) {
		for low := s.Start; low < s.End; low++ {
			if ms > m.lastMS || low+flag > m.low {
				lows = append(lows, low+flag)
			}
		}
	}
	defer func() { // a slot that is held twice counts once
		slices.Sort(lows)
		lows = slices.Compact(lows)
	}()
	usable := false
	for _, l := range m.held {
		if l.Allows(ms) {
			usable = true
			add(l.Slot(), 0)
		}
	}
	if usable {
		return lows, Regular, true
	}
	if !allowFallback || m.cfg.Fallback == FallbackNone {
		return nil, Regular, false
	}
	var reserved, begun []lease.Lease
	all := slices.Clone(m.held)
	if m.cached != nil {
		all = append(all, *m.cached)
	}
	for _, l := range all {
		if ms >= l.Created {
			begun = append(begun, l)
			if ms < l.ReservedUntil {
				reserved = append(reserved, l)
			}
		}
	}
	for _, l := range reserved {
		add(l.Slot(), testTimeline.FallbackBit())
	}
	if len(reserved) > 0 {
		return lows, FallbackCachedID, true
	}
	if m.cfg.Fallback != FallbackCached && len(begun) > 0 {
		for _, l := range begun {
			add(l.Slot(), testTimeline.FallbackBit())
		}
		return lows, FallbackCachedUncertainID, true
	}
	if m.cfg.Fallback == FallbackCached {
		return nil, Regular, false
	}
	add(snowflake.Slot{Start: 0, End: testTimeline.FallbackBit()}, testTimeline.FallbackBit())
	return lows, FallbackRandomID, true
}

// check holds one answer of the core against the model, and takes it over.
func (m *model) check(t *rapid.T, now, want int64, allow bool, r Range, stop Stop) {
	earliest := max(m.lastMS, m.floor, testEpoch)
	ms := now
	if now < earliest {
		limit := m.cfg.MaxBackwardMS
		var backward *ClockBackwardError
		if limit >= 0 && earliest-now > limit {
			if !errors.As(stop.Err, &backward) || backward.BackwardMS != earliest-now || backward.LimitMS != limit {
				t.Fatalf("clock %d behind %d: got %+v", now, earliest, stop)
			}
			return
		}
		if m.lastMS < earliest {
			if stop.Wait != WaitClock || stop.UntilMS != earliest {
				t.Fatalf("clock %d behind the floor %d: got %+v", now, earliest, stop)
			}
			return
		}
		ms = m.lastMS
	}
	lows, kind, ok := m.candidates(ms, allow)
	switch {
	case m.perMS[ms] >= m.cfg.MaxThroughput || (ok && len(lows) == 0):
		if stop.UntilMS != ms+1 || (stop.Wait == WaitClock) != (now < ms) || stop.Wait == WaitNone {
			t.Fatalf("millisecond %d is used up: got %+v %+v", ms, r, stop)
		}
		return
	case !ok:
		if _, ok := errors.AsType[*LeaseAcquisitionError](stop.Err); !ok {
			t.Fatalf("no lease at %d: got %+v %+v", ms, r, stop)
		}
		return
	}
	if stop != (Stop{}) || r.Count < 1 || r.Count > want {
		t.Fatalf("%d values are left in %d and %d wanted: got %+v %+v", len(lows), ms, want, r, stop)
	}
	m.take(t, ms, want, lows, kind, r)
}

func (m *model) take(t *rapid.T, ms, want int64, lows []int64, kind Kind, r Range) {
	allowed := map[int64]bool{}
	for _, low := range lows {
		allowed[low] = true
	}
	fresh := ms > m.lastMS
	for i := range r.Count {
		id := r.Start + snowflake.ID(i)
		low := testTimeline.Low(id)
		if testTimeline.UnixMS(id) != ms || !allowed[low] || r.Kind != kind {
			t.Fatalf("ID %d in ms %d (want %d), low %d, kind %d (want %d): not among the %d candidates %v",
				id, testTimeline.UnixMS(id), ms, low, r.Kind, kind, len(lows), lows)
		}
	}
	// But for the random starts, the first value is the smallest there is.
	if kind != FallbackRandomID && (!fresh || !m.cfg.Spread) && testTimeline.Low(r.Start) != lows[0] {
		t.Fatalf("the first value is %d, and %d was free", testTimeline.Low(r.Start), lows[0])
	}
	if kind != FallbackRandomID {
		i, most := slices.Index(lows, testTimeline.Low(r.Start)), int64(1)
		for i++; i < len(lows) && lows[i] == lows[i-1]+1; i++ {
			most++
		}
		if most = min(most, want, m.cfg.MaxThroughput-m.perMS[ms]); r.Count != most {
			t.Fatalf("%d of %d wanted, and %d were to be had in one piece: %v", r.Count, want, most, lows)
		}
	}
	m.lastMS, m.low = ms, testTimeline.Low(r.Start)+r.Count-1
	m.perMS[ms] += r.Count
	if m.perMS[ms] > m.cfg.MaxThroughput {
		t.Fatalf("%d IDs in ms %d, and %d are allowed", m.perMS[ms], ms, m.cfg.MaxThroughput)
	}
}

func drawConfig(t *rapid.T) Config {
	return Config{
		MaxThroughput: rapid.Int64Range(1, 20).Draw(t, "max"),
		Fallback:      rapid.SampledFrom([]Fallback{FallbackCachedRandom, FallbackCached, FallbackNone}).Draw(t, "fallback"),
		MaxBackwardMS: rapid.SampledFrom([]int64{-1, 0, 3, 50}).Draw(t, "maxBackward"),
		Spread:        rapid.Bool().Draw(t, "spread"),
	}
}

func drawLease(t *rapid.T, now int64, label string) lease.Lease {
	bitSeq := rapid.IntRange(0, 3).Draw(t, label+" bitSeq")
	ids := int64(1) << (snowflake.ValueBits - testBitTS - bitSeq - 1)
	created := now + rapid.Int64Range(-30, 30).Draw(t, label+" created")
	return testLease(rapid.Int64Range(0, ids-1).Draw(t, label+" id"), bitSeq,
		created, created+rapid.Int64Range(1, 60).Draw(t, label+" term"))
}

// TestCoreAgainstModel drives the core with clocks that jump both ways, leases
// that come, overlap, expire and vanish, batches, fallback, other settings and
// restarts.
func TestCoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		now := testEpoch + rapid.Int64Range(-5, 1000).Draw(t, "now")
		core := NewCore(cfg, testTimeline, 0, rnd)
		core.EndStartup()
		m := &model{cfg: cfg, lastMS: -1, perMS: map[int64]int64{}}
		t.Repeat(map[string]func(*rapid.T){
			"tick": func(t *rapid.T) { now += rapid.Int64Range(0, 3).Draw(t, "ms") },
			"jump": func(t *rapid.T) { now = max(now+rapid.Int64Range(-60, 60).Draw(t, "ms"), 0) },
			"leases": func(t *rapid.T) {
				m.held, m.cached = nil, nil
				m.held = drawLeases(t, now, 8)
				slices.SortStableFunc(m.held, func(a, b lease.Lease) int { return int(a.Slot().Start - b.Slot().Start) })
				if rapid.Bool().Draw(t, "has cached") {
					l := drawLease(t, now-40, "cached")
					m.cached = &l
				}
				core.SetLeases(m.held, m.cached, nil)
			},
			"restart": func(t *rapid.T) {
				cfg = drawConfig(t)
				m.cfg = cfg
				m.floor = core.LastMS() + 1
				core = NewCore(cfg, testTimeline, m.floor, rnd)
				core.EndStartup()
				core.SetLeases(m.held, m.cached, nil)
				m.lastMS, m.low = -1, 0
			},
			"take": func(t *rapid.T) {
				want := rapid.Int64Range(1, 12).Draw(t, "want")
				allow := rapid.Bool().Draw(t, "allow fallback")
				r, stop := core.Take(now, want, allow)
				m.check(t, now, want, allow, r, stop) // seeds 000-5.4-1, 000-5.8-2, 000-5.8-3 and 000-5.10-1
			},
		})
	})
}
