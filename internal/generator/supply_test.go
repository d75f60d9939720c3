package generator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// scanned is what leases allow at ms, value by value.
func scanned(held []lease.Lease, ms int64) (lows []int64) {
	for _, l := range held {
		if !l.Allows(ms) {
			continue
		}
		for low := l.Slot().Start; low < l.Slot().End; low++ {
			lows = append(lows, low)
		}
	}
	slices.Sort(lows)
	return slices.Compact(lows)
}

// checkUsable holds every answer for the millisecond against the scan.
func checkUsable(t interface{ Fatalf(string, ...any) }, u *supply, held []lease.Lease, ms int64) {
	lows := scanned(held, ms)
	end := func(i int) int64 { // of the adjacent values that lows[i] is among
		for i+1 < len(lows) && lows[i+1] == lows[i]+1 {
			i++
		}
		return lows[i] + 1
	}
	if room := u.roomAt(ms); room != int64(len(lows)) {
		t.Fatalf("at %d: room for %d, want %d", ms, room, len(lows))
	}
	for i, low := range lows {
		if at, e := u.nth(int64(i)); at != low || e != end(i) {
			t.Fatalf("at %d: value %d is %d in a segment until %d, want %d until %d", ms, i, at, e, low, end(i))
		}
	}
	for n := range 2 * (testTimeline.FallbackBit() + 1) {
		from := max(n-testTimeline.FallbackBit()-1, testTimeline.FallbackBit()-n) // down and up again
		i, _ := slices.BinarySearch(lows, from)
		at, e, ok := u.next(from)
		if ok != (i < len(lows)) || (ok && (at != lows[i] || e != end(i))) {
			t.Fatalf("at %d: from %d on there is %d until %d (%v), among %v", ms, from, at, e, ok, lows)
		}
	}
}

func drawLeases(t *rapid.T, now int64, most int) []lease.Lease {
	leases := make([]lease.Lease, rapid.IntRange(0, most).Draw(t, "held"))
	for i := range leases {
		leases[i] = drawLease(t, now, fmt.Sprint("held ", i))
	}
	return leases
}

// TestUsableAgainstScan: with any leases, and milliseconds asked for in any order, the supply
// remembers what a scan finds.
func TestUsableAgainstScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		core := NewCore(Config{MaxThroughput: 1}, testTimeline, 0, nil)
		var held []lease.Lease
		for range rapid.IntRange(1, 3).Draw(t, "updates") {
			held = drawLeases(t, testEpoch+100, 12)
			core.SetLeases(held, nil, nil)
			for range rapid.IntRange(1, 20).Draw(t, "looks") {
				// Seeds 000-4.2-5 and 000-4.3-3.
				checkUsable(t, &core.regular, held, testEpoch+100+rapid.Int64Range(-40, 100).Draw(t, "ms"))
			}
		}
	})
}

// TestUsableAtTheEdges: a lease counts from its first millisecond to before
// its end, whether time goes forth or back.
func TestUsableAtTheEdges(t *testing.T) {
	held := []lease.Lease{
		testLease(0, 2, 100, 110), testLease(1, 2, 105, 120), // adjacent
		testLease(4, 2, 100, 115), testLease(4, 2, 112, 130), // one slot, granted anew
	}
	core := NewCore(Config{MaxThroughput: 1}, testTimeline, 0, nil)
	core.SetLeases(held, nil, nil)
	for ms := int64(98); ms <= 132; ms++ {
		checkUsable(t, &core.regular, held, ms) // seed 003-3.2-6
	}
	for ms := int64(132); ms >= 98; ms-- {
		checkUsable(t, &core.regular, held, ms)
	}
	core.regular.roomAt(106)
	want := []segment{{start: 0, end: 8, before: 0}, {start: 16, end: 20, before: 8}}
	if u := core.regular; !slices.Equal(u.segments, want) || u.from != 105 || u.until != 110 {
		t.Errorf("at 106: %+v in [%d, %d), want %+v in [105, 110)", u.segments, u.from, u.until, want)
	}
}

// TestManyLeasesAreNotScanned: with time going on, the leases are looked at where one begins or
// ends.
func TestManyLeasesAreNotScanned(t *testing.T) {
	const leases = 1 << 16
	tl := snowflake.DefaultTimeline()
	now := tl.EpochMS + 1000
	core := NewCore(Config{MaxThroughput: 1 << 20}, tl, 0, rand.New(rand.NewPCG(1, 2)))
	held := make([]lease.Lease, leases)
	for i := range held {
		held[i] = lease.Lease{
			ID: int64(i) * 2, Created: now, Expired: now + 1000, ReservedUntil: now + 2000, Secret: "s",
			EpochMS: tl.EpochMS, BitReserve: 1, BitTS: tl.BitTS, BitID: 20, BitSeq: 2,
		}
	}
	core.SetLeases(held, nil, nil)
	if r, stop := core.Take(now, 1, false); r.Count != 1 {
		t.Fatalf("%+v", stop)
	}
	core.regular.windows[0].slot.Start = -1 // a scan would panic
	core.regular.windows[0].slot.End = 0
	for ms := now; ms < now+3; ms++ {
		used := int64(0)
		for {
			r, stop := core.Take(ms, 7, false)
			if r.Count == 0 {
				if stop.Wait != WaitSequence {
					t.Fatalf("%+v", stop)
				}
				break
			}
			used += r.Count
		}
		if ms > now && used != leases*4 {
			t.Errorf("%d IDs, want %d", used, leases*4)
		}
	}
}
