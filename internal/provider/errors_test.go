package provider

import (
	"testing"
	"time"
)

func TestBusyWait(t *testing.T) {
	const almost = 0.999999
	for _, c := range []struct {
		asked, least time.Duration
		random       float64
		from, to     time.Duration
	}{
		{time.Second, 0, 0, time.Second, time.Second},
		{time.Second, 0, almost, 12 * time.Second, 13 * time.Second},
		{time.Minute, 0, almost, 119 * time.Second, 2 * time.Minute}, // up to as long again
		{time.Second, 16 * time.Second, 0, 16 * time.Second, 16 * time.Second},
		{time.Second, 16 * time.Second, almost, 27 * time.Second, 28 * time.Second},
		{0, time.Second, 0, time.Second, time.Second}, // it does not say
		{-time.Hour, time.Second, almost, time.Second, 13 * time.Second},
		{1000 * time.Hour, 0, 0, 10 * time.Minute, 10 * time.Minute}, // it means milliseconds, and says hours
		{1000 * time.Hour, 0, almost, 19 * time.Minute, 20 * time.Minute},
	} {
		busy := &BusyError{RetryAfter: c.asked}
		if got := busy.Wait(c.least, c.random); got < c.from || got > c.to {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
