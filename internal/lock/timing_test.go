package lock

import (
	"testing"
	"time"
)

func TestReliedUntil(t *testing.T) {
	for _, test := range []struct{ sent, remaining, want time.Duration }{
		{0, 20 * time.Second, 19 * time.Second},
		{time.Minute, MinTTL, time.Minute + 95*time.Millisecond},
		{time.Minute, 0, time.Minute},
	} {
		if got := reliedUntil(test.sent, test.remaining); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
	if MinTTL/marginPart <= storeTick {
		t.Errorf("the margin of the shortest term does not cover the tick of a store's clock")
	}
}

func TestBackoff(t *testing.T) {
	for _, test := range []struct {
		failures int
		random   float64
		want     time.Duration
	}{
		{1, 0, 20 * time.Millisecond}, {1, 0.999999, 10 * time.Millisecond}, {2, 0, 40 * time.Millisecond},
		{6, 0, 640 * time.Millisecond}, {7, 0, time.Second}, {1_000_000, 0, time.Second}, {0, 0, 20 * time.Millisecond},
	} {
		if got := backoff(test.failures, 20*time.Millisecond, time.Second, test.random); got.Round(time.Millisecond) != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// No number of failures and no chance lead above the largest wait.
func TestBackoffKeepsItsCap(t *testing.T) {
	for failures := range 100 {
		for _, random := range []float64{0, 0.5, 0.999999} {
			if got := backoff(failures, retryFirst, retryMost, random); got > retryMost || got <= 0 {
				t.Errorf("after %d failures %v", failures, got)
			}
		}
	}
}

func TestAskAgainIn(t *testing.T) {
	for _, test := range []struct {
		found     int
		remaining time.Duration
		notified  bool
		random    float64
		want      time.Duration
	}{
		{1, time.Hour, false, 0, pollFirst},
		{9, time.Hour, false, 0, pollMost},
		{9, time.Hour, false, 0.5, pollMost * 3 / 4},
		{9, 300 * time.Millisecond, false, 0, 300 * time.Millisecond},
		{1, time.Hour, true, 0, noticeMost},
		{1, 300 * time.Millisecond, true, 0.5, 305 * time.Millisecond},
		{1, time.Millisecond, true, 0, time.Millisecond},
		// The store is late to see the end.
		{2, time.Millisecond, true, 0, 2 * pollFirst},
		{2, time.Millisecond, false, 0, 2 * pollFirst},
		{99, time.Millisecond, true, 0, noticeMost},
		{99, time.Millisecond, false, 0, pollMost},
		{99, 2 * storeTick, true, 0, 2 * storeTick}, // the end is still to come
	} {
		if got := askAgainIn(test.found, test.remaining, test.notified, test.random); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
