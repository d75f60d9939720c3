package snowflake

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func drawLayout(t *rapid.T) Layout {
	ts := rapid.IntRange(1, 62).Draw(t, "bit_ts")
	id := rapid.IntRange(1, 63-ts).Draw(t, "bit_id")
	return Layout{BitTS: ts, BitID: id, BitSeq: 63 - ts - id}
}

func TestLayoutValidate(t *testing.T) {
	for _, tc := range []struct {
		layout Layout
		ok     bool
	}{
		{DefaultLayout(), true},
		{Layout{41, 13, 9}, true},
		{Layout{62, 1, 0}, true},
		{Layout{1, 1, 61}, true},
		{Layout{41, 22, 0}, true},
		{Layout{}, false},
		{Layout{41, 14, 9}, false},
		{Layout{0, 31, 32}, false},
		{Layout{41, 0, 22}, false},
		{Layout{41, 23, -1}, false},
	} {
		if err := tc.layout.Validate(); (err == nil) != tc.ok { // seed 000-2.2-1
			t.Errorf("%v: %v, want ok = %v", tc.layout, err, tc.ok)
		}
	}
}

// TestRoundTrip composes and takes apart IDs of every layout.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layout := drawLayout(t)
		tl := Timeline{EpochMS: rapid.Int64Range(0, 4e12).Draw(t, "epoch"), BitTS: layout.BitTS}
		ms := rapid.Int64Range(tl.EpochMS, tl.EndMS()-1).Draw(t, "ms")
		machine := rapid.Int64Range(0, layout.MachineIDs()-1).Draw(t, "machine")
		seq := rapid.Int64Range(0, layout.Throughput()-1).Draw(t, "seq")
		fallback := rapid.Bool().Draw(t, "fallback")
		low := layout.Slot(machine).Start + seq
		kind := KindRegular
		if fallback {
			low += tl.FallbackBit()
			kind = KindFallback
		}
		id := tl.ID(ms, low)
		if tl.UnixMS(id) != ms || tl.Low(id) != low || tl.IsFallback(id) != fallback { // seed 000-2.2-2
			t.Fatalf("ID %d: (%d, %d, %v), want (%d, %d, %v)", id, tl.UnixMS(id), tl.Low(id), tl.IsFallback(id), ms, low, fallback)
		}
		in, err := Inspect(id, layout, tl.EpochMS, Codec{})
		must.Succeed(t, err)
		if in.TimestampMS != ms || in.MachineID != machine || in.Sequence != seq || in.Kind != kind || in.Layout() != layout {
			t.Fatalf("inspection %+v of ms %d, machine %d, sequence %d, %s", in, ms, machine, seq, kind)
		}
		if back, err := (Codec{}).Decode(in.External); err != nil || back != id {
			t.Fatalf("external %q decodes to %d, %v", in.External, back, err)
		}
		if !strings.Contains(in.Picture(), kind) {
			t.Fatalf("the picture does not say %s:\n%s", kind, in.Picture())
		}
	})
}

// TestOrder: IDs sort as (timestamp, low bits) do.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := Timeline{EpochMS: DefaultEpochMS, BitTS: rapid.IntRange(1, 62).Draw(t, "bit_ts")}
		draw := func(label string) (ms, low int64) {
			return rapid.Int64Range(tl.EpochMS, tl.EndMS()-1).Draw(t, label+" ms"),
				rapid.Int64Range(0, tl.MaxLow()).Draw(t, label+" low")
		}
		ms1, low1 := draw("a")
		ms2, low2 := draw("b")
		if rapid.Bool().Draw(t, "same ms") {
			ms2 = ms1
		}
		want := ms1 < ms2 || (ms1 == ms2 && low1 < low2)
		if got := tl.ID(ms1, low1) < tl.ID(ms2, low2); got != want { // seed 000-2.1-2
			t.Fatalf("(%d, %d) < (%d, %d): %v, want %v", ms1, low1, ms2, low2, got, want)
		}
	})
}

// TestSlotsCompareAsRanges: id 1 of (14, 8) lies inside id 0 of (13, 9).
func TestSlotsCompareAsRanges(t *testing.T) {
	fine, coarse := Layout{41, 14, 8}, Layout{41, 13, 9}
	if !fine.Slot(1).Overlaps(coarse.Slot(0)) || fine.Slot(1).Overlaps(coarse.Slot(1)) || fine.Slot(2).Overlaps(coarse.Slot(0)) {
		t.Error("slots of two layouts are not compared as ranges")
	}
	rapid.Check(t, func(t *rapid.T) {
		a := Slot{rapid.Int64Range(0, 20).Draw(t, "a"), 0}
		b := Slot{rapid.Int64Range(0, 20).Draw(t, "b"), 0}
		a.End = a.Start + rapid.Int64Range(1, 10).Draw(t, "a size")
		b.End = b.Start + rapid.Int64Range(1, 10).Draw(t, "b size")
		shared := false
		for v := a.Start; v < a.End; v++ {
			shared = shared || (v >= b.Start && v < b.End)
		}
		if a.Overlaps(b) != shared || b.Overlaps(a) != shared {
			t.Fatalf("%v and %v: overlap %v, want %v", a, b, a.Overlaps(b), shared)
		}
	})
}

func TestBounds(t *testing.T) {
	tl := DefaultTimeline()
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339Nano, s)
		must.Succeed(t, err)
		return v
	}
	for _, tc := range []struct {
		from, to    string
		first, last string // the embedded times at the bounds
		wantErr     string
	}{
		{"2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z", "2026-11-01T00:00:00.000Z", "2026-11-01T23:59:59.999Z", ""},
		{"2026-11-01T00:00:00.0005Z", "2026-11-01T00:00:00.0006Z", "2026-11-01T00:00:00.000Z", "2026-11-01T00:00:00.000Z", ""},
		{"2025-01-01T00:00:00Z", "2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z", ""},
		{"2026-11-01T00:00:00Z", "2126-11-02T00:00:00Z", "2026-11-01T00:00:00.000Z", FormatMS(tl.EndMS() - 1), ""},
		{"2026-11-02T00:00:00Z", "2026-11-01T00:00:00Z", "", "", "is empty"},
		{"2026-11-02T00:00:00Z", "2026-11-02T00:00:00Z", "", "", "is empty"},
		{"2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "", "", "holds no ID"},
		{"2126-01-01T00:00:00Z", "2127-01-01T00:00:00Z", "", "", "holds no ID"},
	} {
		small, large, err := tl.Bounds(at(tc.from), at(tc.to))
		if tc.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("%s to %s: %v, want an error with %q", tc.from, tc.to, err, tc.wantErr)
			}
			continue
		}
		if err != nil || tl.Low(small) != 0 || tl.Low(large) != tl.MaxLow() ||
			FormatMS(tl.UnixMS(small)) != tc.first || FormatMS(tl.UnixMS(large)) != tc.last {
			t.Errorf("%s to %s: %d (%s) to %d (%s), %v; want %s to %s", tc.from, tc.to, small, FormatMS(tl.UnixMS(small)),
				large, FormatMS(tl.UnixMS(large)), err, tc.first, tc.last)
		}
	}
}

func TestTimelineEnd(t *testing.T) {
	// Seed 000-2.4-1: 35, 69 and 139 years.
	for bits, want := range map[int]string{40: "2060-11-03T19:53:47.776Z", DefaultBitTS: "2095-09-07T15:47:35.552Z", 42: "2165-05-15T07:35:11.104Z"} {
		if got := FormatMS(Timeline{EpochMS: DefaultEpochMS, BitTS: bits}.EndMS()); got != want {
			t.Errorf("the timeline of %d bits ends at %s, want %s", bits, got, want)
		}
	}
	if got := (Timeline{EpochMS: math.MaxInt64 - 5, BitTS: 62}).EndMS(); got != math.MaxInt64 {
		t.Errorf("an end beyond int64 is %d, want it saturated", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("an ID past the end was made")
		}
	}()
	DefaultTimeline().ID(DefaultTimeline().EndMS(), 0)
}

func TestInspectRefuses(t *testing.T) {
	if _, err := Inspect(-1, DefaultLayout(), 0, Codec{}); err == nil {
		t.Error("a value with the reserve bit set was inspected")
	}
	if _, err := Inspect(1, Layout{41, 14, 9}, 0, Codec{}); err == nil {
		t.Error("an invalid layout was used")
	}
}

func TestPicture(t *testing.T) {
	layout := DefaultLayout()
	tl := DefaultTimeline()
	in, err := Inspect(tl.ID(tl.EpochMS+5, layout.Slot(3).Start+7), layout, tl.EpochMS, Codec{})
	must.Succeed(t, err)
	want := strings.Join([]string{
		"0 00000000000000000000000000000000000000101 0 0000000000011 00000111",
		"│ │                                         │ │             └ sequence 7",
		"│ │                                         │ └ machine ID 3",
		"│ │                                         └ kind regular",
		"│ └ timestamp 5 ms",
		"└ reserve",
	}, "\n")
	if got := in.Picture(); got != want {
		t.Errorf("picture:\n%s\nwant:\n%s", got, want)
	}
}
