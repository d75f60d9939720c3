package keeper

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// Seeds 000-5.5-1 and 000-13-1.
func TestRenewalMS(t *testing.T) {
	for _, c := range []struct{ created, expired, want int64 }{
		{0, 600_000, 540_000},
		{1_000, 601_000, 541_000},
		{startMS, startMS + 600_000, startMS + 540_000},
		{0, 10, 9},
		{0, 15, 13}, // rounded down: rather early than late
		{0, 1, 0},   // too short to have nine tenths
	} {
		if got := renewalMS(c.created, c.expired); got != c.want {
			t.Errorf("a lease from %d to %d is renewed at %d, want %d", c.created, c.expired, got, c.want)
		}
	}
}

func TestCovers(t *testing.T) {
	const created, expired = startMS, startMS + 600_000
	const hour = 3_600_000
	for _, c := range []struct {
		name string
		now  int64
		want bool
	}{
		{"the clock agrees", created, true},
		{"half way", created + 300_000, true},
		{"just before renewal is due", created + 539_999, true},
		{"renewal is due already", created + 540_000, false},
		{"just before its end", expired - 1, false},
		{"ended", expired, false},
		{"clock an hour ahead", created + hour, false},
		{"granted a little ahead", created - 1, true},
		{"granted a tenth of a term ahead", created - 60_000, true},
		{"granted further ahead", created - 60_001, false},
		{"clock an hour behind", created - hour, false},
	} {
		if got := covers(created, expired, c.now); got != c.want {
			t.Errorf("%s: covers = %v", c.name, got)
		}
	}
}

// TestBackoff is the table of seed 000, section 5.7, and the bounds of the
// jitter, which never lifts a wait above the largest interval.
// Seed 000-5.7-1.
func TestBackoff(t *testing.T) {
	table := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}
	for i, seconds := range table {
		failures, want := i+1, seconds*time.Second
		t.Run(fmt.Sprintf("%d failures", failures), func(t *testing.T) {
			if got := backoff(failures, time.Second, time.Minute, 0); got != want {
				t.Errorf("%v, want %v", got, want)
			}
			sign := time.Duration(1)
			if want == time.Minute {
				sign = -1 // there is no room above
			}
			if got := backoff(failures, time.Second, time.Minute, 0.5); got != want+sign*want/20 {
				t.Errorf("with half the jitter %v, want %v", got, want+sign*want/20)
			}
			if most := sign * (backoff(failures, time.Second, time.Minute, 0.999999) - want); most <= want/11 || most >= want/10 {
				t.Errorf("all jitter is %v, want just below %v", most, want/10)
			}
		})
	}
	if got := backoff(1_000_000, time.Second, time.Minute, 0); got != time.Minute {
		t.Errorf("after a million failures %v", got)
	}
	if got := backoff(1, time.Minute, time.Second, 0); got != time.Second {
		t.Errorf("an interval above the largest one gives %v", got)
	}
	if got := backoff(3, 250*time.Millisecond, 700*time.Millisecond, 0); got != 700*time.Millisecond {
		t.Errorf("%v: the doubled interval is cut at the largest one", got)
	}
}

// TestBackoffKeepsItsCap: no number of failures, no intervals and no jitter lead
// to a wait above the largest interval, or to none.
func TestBackoffKeepsItsCap(t *testing.T) {
	intervals := []time.Duration{time.Millisecond, 250 * time.Millisecond, time.Second, time.Minute, time.Hour, math.MaxInt64 / 3, math.MaxInt64}
	for _, first := range intervals {
		for _, most := range intervals {
			for _, failures := range []int{0, 1, 2, 3, 7, 63, 64, 65, 1_000_000} {
				for _, random := range []float64{0, 0.25, 0.5, 0.999999, math.Nextafter(1, 0)} {
					if got := backoff(failures, first, most, random); got > most || got <= 0 {
						t.Errorf("backoff(%d, %v, %v, %v) is %v", failures, first, most, random, got)
					}
				}
			}
		}
	}
}

func TestFenceWait(t *testing.T) {
	const usual, first, most = 8 * time.Second, time.Second, time.Minute
	for _, c := range []struct {
		end    time.Duration
		random float64
		want   time.Duration
	}{
		{-time.Second, 0.5, usual}, // over already
		{0, 0.5, usual},
		{time.Millisecond, 0, first},
		{30 * time.Second, 0, 30 * time.Second},
		{30 * time.Second, 0.5, 30*time.Second + 500*time.Millisecond},
		{most - first/4, 0.1, most - first/4 + first/10},
		{most - first/4, 0.999, most}, // not beyond it, and not before the end
		{most, 0.999, most},
		{most + 1, 0.5, usual},
	} {
		if got := fenceWait(c.end, usual, first, most, c.random); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
