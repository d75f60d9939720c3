package daemon

import (
	"testing"
	"testing/synctest"
	"time"
)

// A message has its time to end, and no other's.
func TestMessageEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e MessageEnd
		for i, step := range []struct {
			ended, partial, changed bool
		}{
			{false, false, false}, {false, true, true}, {false, true, false},
			{true, true, true}, {false, true, false}, // the next one has begun as well
			{true, false, true}, {false, false, false}, {true, false, false}, {true, true, true}, {true, false, true},
		} {
			if step.ended {
				e.Ended()
			}
			time.Sleep(time.Second)
			changed, until := false, time.Time{}
			_ = e.Limit(step.partial, time.Minute, func(at time.Time) error {
				changed, until = true, at
				return nil
			})
			if changed != step.changed || changed && step.partial != until.Equal(time.Now().Add(time.Minute)) || !step.partial && !until.IsZero() {
				t.Errorf("step %d: %v, %t", i, until, changed)
			}
		}
	})
}
