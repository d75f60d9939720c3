package etcd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// randomMarks is records of slots in all sizes up to 2^(bits-1).
func randomMarks(random *rand.Rand, bits, n int) []mark {
	seen := map[string]bool{}
	var marks []mark
	for range n {
		level := random.IntN(bits)
		start := random.Int64N(1<<bits) >> level << level
		key := fmt.Sprint(start, level)
		if !seen[key] {
			seen[key] = true
			marks = append(marks, mark{start: start, bitSeq: level, end: random.Int64N(8)})
		}
	}
	slices.SortFunc(marks, compareMarks)
	return marks
}

func naiveEnd(marks []mark, s snowflake.Slot) (end int64) {
	for _, m := range marks {
		if m.slot().Overlaps(s) {
			end = max(end, m.end)
		}
	}
	return end
}

func TestRunsAgreeWithRecords(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		marks := randomMarks(random, 8, random.IntN(40))
		bitSeq := random.IntN(6)
		low := random.Int64N(1 << (8 - bitSeq))
		high := low + random.Int64N(1<<(8-bitSeq)-low)
		next := low
		runs(marks, bitSeq, low, high, func(r run) bool {
			if r.low != next || r.high < r.low || r.high > high {
				t.Fatalf("the run %+v does not follow %d", r, next-1)
			}
			for ; next <= r.high; next++ {
				if want := naiveEnd(marks, snowflake.Slot{Start: next << bitSeq, End: (next + 1) << bitSeq}); want != r.end {
					t.Fatalf("%v: machine ID %d (bit_seq %d) ends at %d, want %d", marks, next, bitSeq, r.end, want)
				}
			}
			return true
		})
		if next != high+1 {
			t.Fatalf("the runs end at %d, want %d", next-1, high)
		}
	}
}

// naiveOrder takes the least (end, distance) n times, as package provider says.
func naiveOrder(marks []mark, r ring, now int64, n int, skip func(int64) bool) (ids []int64) {
	taken := map[int64]bool{}
	cursor, count := r.cursor, r.ids.Count()
	for len(ids) < n {
		best, bestEnd := int64(-1), int64(0)
		for step := int64(1); step <= count; step++ {
			id := r.ids.Low + (cursor-r.ids.Low+step)%count
			end := naiveEnd(marks, snowflake.Slot{Start: id << r.bitSeq, End: (id + 1) << r.bitSeq})
			if !taken[id] && !skip(id) && end <= now && (best < 0 || end < bestEnd) {
				best, bestEnd = id, end
			}
		}
		if best < 0 {
			break
		}
		taken[best], cursor = true, best
		ids = append(ids, best)
	}
	return ids
}

func TestOrderIsLeastEndThenRoundRobin(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		marks := randomMarks(random, 7, random.IntN(40))
		r := ring{bitSeq: random.IntN(4)}
		r.ids.Low = random.Int64N(1 << (7 - r.bitSeq))
		r.ids.End = r.ids.Low + 1 + random.Int64N(1<<(7-r.bitSeq)-r.ids.Low)
		r.cursor = r.ids.Low + random.Int64N(r.ids.Count())
		now, n := random.Int64N(9), 1+random.IntN(12)
		bit := int64(random.IntN(3))
		skip := func(id int64) bool { return bit > 0 && id%3 == bit }
		s := newSearch(now, int64(n)+r.ids.Count()) // skipped ones are found, and not taken
		for _, part := range r.parts() {
			if !runs(marks, r.bitSeq, part[0], part[1], s.add) {
				break
			}
		}
		if got, want := s.inOrder(r.cursor, n, 128, skip), naiveOrder(marks, r, now, n, skip); !slices.Equal(got, want) {
			t.Fatalf("%v\nring %+v at %d: %v, want %v", marks, r, now, got, want)
		}
	}
}

// A scan and a view are two ways to the same answer.
func TestScanAgreesWithView(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a pool")
	}
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1e9)
	base := provider.DefaultTerms()
	base.Term, base.Quarantine = time.Minute, time.Minute
	wide := base.WithBitSeq(14)
	some := base
	some.IDs = provider.IDRange{Low: 100, End: 900}
	services := provider.Services{Default: base, Named: map[string]provider.Terms{"coarse": base.WithBitSeq(10), "wide": wide, "some": some}}
	p := mustOpen(t, config(t, services, clock.Load))
	random := rand.New(rand.NewPCG(5, 6))
	ctx := within(t, time.Minute)
	for range 60 {
		service := []string{"", "", "coarse", "some"}[random.IntN(4)]
		_, err := p.Acquire(ctx, provider.AcquireRequest{Service: service, ThroughputPerMS: random.Int64N(256 * 60)})
		if err != nil {
			t.Fatal(err)
		}
		clock.Add(random.Int64N(3000))
	}
	pl := p.pool(provider.DefaultPool)
	for service, terms := range map[string]provider.Terms{"": base, "coarse": services.Named["coarse"], "wide": wide, "some": some} {
		for _, cursor := range []int64{terms.Range().Low, terms.Range().Low + terms.Range().Count()/2, terms.Range().End - 1} {
			for _, ahead := range []int64{-60_000, 0, 60_000, 120_000} {
				a := &acquisition{p: p, pool: pl, terms: terms, now: clock.Load() + ahead, key: "/none"}
				st, err := a.read(ctx)
				if err != nil {
					t.Fatal(err)
				}
				r := newRing(terms, cursor, true)
				if st.view == nil || !st.view.reached(ctx, st.last) {
					t.Fatal("there is no view")
				}
				const want = 20
				bySight, scanned := newSearch(a.now, want), newSearch(a.now, want)
				fromView, ok, viewErr := a.lookUp(st, r, bySight, want)
				marks, err := a.scan(ctx, st, r, scanned, 1<<40)
				if err != nil || !ok {
					t.Fatal(err, ok)
				}
				fromScan, scanErr := a.choose(st, r, scanned, marks, want)
				if viewErr != nil || scanErr != nil {
					if viewErr == nil || scanErr == nil || viewErr.Error() != scanErr.Error() {
						t.Errorf("%q: the view says %v, the scan %v", service, viewErr, scanErr)
					}
					continue
				}
				n := min(want, len(fromView.ids), len(fromScan.ids))
				if n == 0 || !slices.Equal(fromView.ids[:n], fromScan.ids[:n]) {
					t.Errorf("%q from %d, %d ms ahead: the view has %v, the scan %v", service, cursor, ahead, fromView.ids[:n], fromScan.ids[:n])
				}
				for _, id := range fromScan.ids[:n] {
					if a, b := fromScan.bases[id], fromView.bases[id]; a.number != b.number || a.inside != b.inside || !slices.Equal(a.coarser, b.coarser) {
						t.Errorf("machine ID %d is free by %+v for the scan, by %+v for the view", id, a, b)
					}
				}
			}
		}
	}
}
