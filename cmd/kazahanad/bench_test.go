package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// bench asks the site's daemon for IDs.
func (s *site) bench(args ...string) testkit.Outcome {
	s.T.Helper()
	return s.Kazahanad(append([]string{"bench"}, args...)...)
}

func TestBench(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start("--services", "{orders: {}}")
	c := s.Dial()
	issued := func(service string) uint64 {
		for _, one := range c.Status().Services {
			if one.Service == service {
				return one.Issued.Regular
			}
		}
		t.Fatalf("there is no service %s", service)
		return 0
	}
	for _, load := range []struct{ connections, pipeline, batch int }{
		{1, 1, 1}, {5, 3, 20},
	} {
		before := issued("orders")
		var r benchReport
		testkit.DecodeJSON(t, s.bench("--service", "orders", "--duration", "500ms", "--connections", fmt.Sprint(load.connections),
			"--pipeline", fmt.Sprint(load.pipeline), "--batch", fmt.Sprint(load.batch)).OK(t), &r)
		l := r.Latency
		if r.Service != "orders" || r.Connections != load.connections || r.Pipeline != load.pipeline || r.Batch != load.batch ||
			r.Requests < 1 || r.Requests%int64(load.pipeline) != 0 || r.IDs != r.Requests*int64(load.batch) || r.Seconds <= 0 || r.IDsPerSec < r.PerSecond ||
			l.P50 <= 0 || l.P90 < l.P50 || l.P99 < l.P90 || l.P999 < l.P99 || l.Max < l.P999 {
			t.Errorf("%+v: %+v", load, r)
		}
		// IDs of the warm-up, and IDs that came too late to count, are IDs as well.
		if got := issued("orders") - before; got < uint64(r.IDs) {
			t.Errorf("%+v: the daemon made %d IDs, and bench counts %d", load, got, r.IDs)
		}
	}
	if got := issued("default"); got != 0 {
		t.Errorf("the other service made %d IDs", got)
	}
}

func TestBenchErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.bench().Fails(t, exitFailure, s.Socket)
	d := s.Start("--max-connections", "6")
	s.bench("--service", "nope").Fails(t, exitFailure, "UNKNOWN_SERVICE", "nope")
	s.bench("--connections", "9").Fails(t, exitFailure, "OVERLOADED")
	// All of them together take longer than a quantum, and bench tries 50 times.
	var many testkit.Outcome
	await.Eventually(t, "the daemon notices that the connections of the last run are closed", func() bool {
		many = s.bench("--pipeline", "2", "--batch", "8192", "--duration", "1ms", "--connections", "2")
		return !strings.Contains(many.Stderr, "OVERLOADED")
	})
	many.Fails(t, exitFailure, "send less together")
	d.Freeze()
	s.bench("--timeout", "100ms").Fails(t, exitFailure, "no answer")
	if err := d.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	d.Terminate()
}
