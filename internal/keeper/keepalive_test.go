package keeper

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/generator"
)

const (
	begins = "starting worker id keep alive"
	breaks = "keep alive failed, circuit breaking"
	fails  = "failed to allocate worker id"
)

// The circuit breaks where a lease was kept alive and none is left: regular IDs end, and any IDs
// may follow them (seed 003, 7.2). Every other failed acquire is just that.
func TestCircuitBreaks(t *testing.T) {
	for name, c := range map[string]struct {
		fallback generator.Fallback
		before   bool // there was a lease
		want     bool
	}{
		"no fallback":                 {generator.FallbackNone, true, true},
		"no fallback, never a lease":  {generator.FallbackNone, false, false},
		"IDs go on as fallback":       {generator.FallbackCachedRandom, true, true},
		"fallback from the beginning": {generator.FallbackCachedRandom, false, false},
	} {
		t.Run(name, hosted(func(s *setup) { s.fallback = c.fallback }, func(t *testing.T, r *rig) {
			if !c.before {
				r.remote.fail(unreachable)
			}
			r.start()
			r.until(time.Minute)
			r.remote.fail(unreachable)
			r.until(term - time.Second)
			if n := len(r.logged(breaks)); n != 0 {
				t.Errorf("%q is logged %d times, before the lease's end", breaks, n)
			}
			failed := len(r.logged(fails))
			if failed == 0 || r.logged(fails)[0].Level != zapcore.ErrorLevel { // seed 003-7.2-5
				t.Errorf("%q is not logged as an error", fails)
			}
			r.until(2 * term)
			broken, more := len(r.logged(breaks)), len(r.logged(fails))-failed
			if (broken > 0) != c.want || (more > 0) == c.want { // seed 003-7.2-4
				t.Errorf("after the lease's end %q is logged %d times, and %q %d times", breaks, broken, fails, more)
			}
			for _, line := range r.logged(breaks) {
				wantKeepAlive(t, line, r.logged("worker id allocated")[0])
			}
			// A restart within the outage: the adopted lease has ended.
			r.restart()
			r.until(2*term + time.Minute)
			again := r.logged(breaks)[broken:]
			if (len(again) > 0) != c.want {
				t.Errorf("after a restart %q is logged %d times", breaks, len(again))
			}
			for _, line := range again {
				wantKeepAlive(t, line, r.logged("worker id allocated")[0])
			}
		}))
	}
}

// The keep alive begins with the first lease, which the line names, and once only.
func TestKeepAliveBegins(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.remote.fail(unreachable)
		r.start()
		r.until(20 * time.Second)
		if n := len(r.logged(begins)); n != 0 {
			t.Fatalf("%q is logged without a lease", begins)
		}
		r.kill()
		if n := len(r.logged("keep alive stopped")); n != 0 {
			t.Error("what never began is logged to have stopped")
		}
		r.restart()
		r.remote.heal()
		r.until(3 * term) // with renewals
		lines := r.logs.FilterMessage(begins).All()
		if len(lines) != 1 { // seed 003-7.2-2
			t.Fatalf("%q is logged %d times", begins, len(lines))
		}
		first := r.logged("worker id allocated")[0]
		wantKeepAlive(t, lines[0], first) // seed 003-7.1-3
		// An adopted lease is kept alive from the start on.
		r.restart()
		if stopped := r.logged("keep alive stopped"); len(stopped) != 1 { // seed 003-7.2-3
			t.Errorf("%d lines tell of the stop", len(stopped))
		} else {
			granted := r.logged("worker id allocated")
			wantKeepAlive(t, stopped[0], granted[len(granted)-1])
		}
		r.until(3*term + time.Second)
		lines = r.logged(begins)
		if len(lines) != 2 {
			t.Fatalf("after a restart %q is logged %d times", begins, len(lines))
		}
		wantKeepAlive(t, lines[1], r.logged("lease adopted from an earlier run")[0])
	})
}

func wantKeepAlive(t *testing.T, line, lease observer.LoggedEntry) {
	t.Helper()
	got, want := line.ContextMap(), lease.ContextMap()
	if got["worker_id"] != want["worker_id"] || got["key"] != fmt.Sprintf("%s:%v", service, want["worker_id"]) || line.Time.Before(lease.Time) {
		t.Errorf("%q has %v at %v; the lease %v at %v", line.Message, got, line.Time, want, lease.Time)
	}
	if level := map[string]zapcore.Level{breaks: zapcore.ErrorLevel}[line.Message]; line.Level != level { // else info
		t.Errorf("%q has the level %v, want %v", line.Message, line.Level, level)
	}
}
