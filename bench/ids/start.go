//go:build linux

package ids

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/load"
)

const startKey = "start"

// startsEach is how many starts of each kind there are in a round.
const startsEach = 2

// Quantities of the row, in nanoseconds.
const (
	quantityFresh   = "fresh"
	quantityStopped = "after a stop"
	quantityKilled  = "after a kill"
)

// startResult is what the part start prints, as JSON: from exec to the
// first NextID answered.
type startResult struct {
	Fresh   time.Duration `json:"fresh_ns"`
	Stopped time.Duration `json:"stopped_ns"`
	Killed  time.Duration `json:"killed_ns"`
	// Fallback: an ID was a fallback ID, because the lease took too long.
	Fallback bool `json:"fallback"`
}

func startRow() row {
	r := row{
		key: startKey, help: "from exec to the first NextID answered: fresh, after a stop, after a kill",
		takes:   func(plan, int) time.Duration { return startsEach * 3 * daemonTime },
		measure: measureStart,
		note: fmt.Sprintf("%d starts of each kind in a round, whose mean counts, all settings as shipped; a process on the same core starts the daemon, tries to connect "+
			"every %v, and asks once; fresh: an empty directory; after a stop: SIGTERM, then the same directory; after kill -9: the same, with the lease still held",
			startsEach, connectPause),
	}
	for _, q := range [][2]string{{quantityFresh, "ms, fresh directory"}, {quantityStopped, "ms, after a stop"}, {quantityKilled, "ms, after kill -9"}} {
		r.shows("start, to the first NextID", q[0], q[1], report.Milliseconds).atMost(60e6)
	}
	return r
}

func measureStart(ctx context.Context, b *bench) error {
	var sum startResult
	for range startsEach {
		var r startResult
		if err := b.launch.Ask(ctx, 6*startLimit, &r, arguments("start", startOptions{b.plan.Daemon, b.freshDir()})...); err != nil {
			return err
		}
		if r.Fallback {
			b.remarks = append(b.remarks, fmt.Sprintf("start: round %d does not count: a lease took so long that the first ID was a fallback ID", b.round+1))
			return nil
		}
		sum.Fresh, sum.Stopped, sum.Killed = sum.Fresh+r.Fresh, sum.Stopped+r.Stopped, sum.Killed+r.Killed
	}
	b.add(startKey, kazahanad, quantityFresh, float64(sum.Fresh)/startsEach)
	b.add(startKey, kazahanad, quantityStopped, float64(sum.Stopped)/startsEach)
	b.add(startKey, kazahanad, quantityKilled, float64(sum.Killed)/startsEach)
	return nil
}

// startOptions are the options of the part start.
type startOptions struct {
	Daemon string // path of its program
	Dir    string // an empty directory
}

// startMain is the part start.
func startMain(o startOptions) error {
	var r startResult
	for _, step := range []struct {
		took *time.Duration
		end  func(*process.Service) error
	}{
		{&r.Fresh, func(s *process.Service) error { return s.End(startLimit) }},
		{&r.Stopped, func(s *process.Service) error { s.Stop(); return nil }},
		{&r.Killed, func(s *process.Service) error { s.Stop(); return nil }},
	} {
		service, took, regular, err := startOnce(o.Daemon, o.Dir)
		if err == nil {
			*step.took = took
			r.Fallback = r.Fallback || !regular
			err = step.end(service)
		}
		if err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// connectPause is between attempts to connect: short beside a start, and long
// enough to leave the core to the daemon.
const connectPause = 200 * time.Microsecond

// startOnce starts the daemon and measures until it has answered a NextID.
// regular reports whether that was a regular ID.
func startOnce(path, dir string) (_ *process.Service, took time.Duration, regular bool, err error) {
	args, files := daemonArguments(dir, daemonOptions{name: "start"})
	// Where this process is pinned, its children are, too.
	here := process.Launcher{Core: -1}
	began := time.Now()
	service, err := here.Launch(filepath.Join(dir, "start.log"), path, args...)
	if err != nil {
		return nil, 0, false, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, service.Failure())
			service.Stop()
		}
	}()
	for {
		hangUp, err := load.AskOnce(load.Options{Socket: files.socket, Dialect: load.RPC, Count: 1})
		took = time.Since(began)
		if err == nil {
			hangUp()
			break
		}
		notYet := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
		if !notYet || took > startLimit {
			return nil, 0, false, fmt.Errorf("the daemon does not answer: %w", err)
		}
		time.Sleep(connectPause)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	st, err := statusOf(ctx, files.socket)
	if err != nil {
		return nil, 0, false, err
	}
	return service, took, st.fallbackIDs() == 0, nil
}
