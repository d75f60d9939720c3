package keeper

import (
	"fmt"
	"testing"
	"time"
)

func TestRenewalMS(t *testing.T) {
	for _, c := range []struct{ created, expired, want int64 }{
		{0, 600_000, 540_000},
		{1_000, 601_000, 541_000},
		{startMS, startMS + 600_000, startMS + 540_000},
		{0, 10, 9},
		{0, 15, 13}, // rounded down: rather early than late
		{0, 1, 0},   // too short to have nine tenths
	} {
		if got := renewalMS(c.created, c.expired); got != c.want { // seeds 000-5.5-1 and 000-13-1
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
func TestBackoff(t *testing.T) {
	table := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}
	for i, seconds := range table {
		failures, want := i+1, seconds*time.Second
		t.Run(fmt.Sprintf("%d failures", failures), func(t *testing.T) {
			if got := backoff(failures, time.Second, time.Minute, 0); got != want { // seed 000-5.7-1
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
