package longwork

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Others have their turns when work has gone on for long.
func TestOthersHaveTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		var work Work
		var had atomic.Bool
		work.Part()
		go had.Store(true)
		// Once in 61 times the runtime looks first at those who let others go first.
		for range 3 {
			work.since = work.since.Add(-atOnce)
			work.Part()
		}
		if !had.Load() {
			t.Error("others had no turn")
		}
		if work.since != time.Now() {
			t.Errorf("the next part began at %s", work.since)
		}
	})
}
