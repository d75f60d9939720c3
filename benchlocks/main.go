//go:build linux

// Command benchlocks measures locks and sequences on SQLite, Redis and etcd: in
// process, through a daemon's socket, over HTTP from a lease server on SQLite, and
// beside the same work done with the bare commands of Redis and etcd.
// docs/performance.md says what it showed.
//
// A round measures row after row, and within a row everybody, one right after the
// other, so that what slows the machine down is on both sides of every ratio.
// Shown are medians of the rounds, and of the ratios within each. Servers and
// clients share one core, because two would be shared out differently each time.
//
// What SQLite and etcd have answered is on the disk; Redis runs without
// persistence, for both sides.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// plan is what the command line asks for.
type plan struct {
	rounds   int
	duration time.Duration // of one measurement
	core     int
	binary   string
	dir      string
	only     string // rows and stores, separated by commas; "" = all
	check    bool
}

func main() {
	// The kernel ends the servers when the thread that started them ends.
	runtime.LockOSThread()
	var p plan
	flag.IntVar(&p.rounds, "rounds", 5, "`N` rounds; each measures everything once")
	flag.DurationVar(&p.duration, "duration", time.Second, "`time` for each measurement")
	flag.IntVar(&p.core, "core", 0, "`core` that servers and clients share; -1 = not pinned")
	flag.StringVar(&p.binary, "daemon", filepath.Join("bin", "kazahanad"), "`path` of the daemon, as make build leaves it")
	flag.StringVar(&p.dir, "dir", "", "`directory` of the files; it should be on a real disk (default: that of temporary files)")
	flag.StringVar(&p.only, "only", "", "measure these `rows and stores`, separated by commas, for example pair64,SQLite (default all)")
	flag.BoolVar(&p.check, "check", false, "fail when a target is missed by more than 10%")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "Usage: benchlocks [flags]\n\nRows, for -only:\n")
		for _, r := range rows {
			fmt.Fprintf(os.Stderr, "  %-8s  %s\n", r.key, r.title)
		}
		fmt.Fprintf(os.Stderr, "Stores: %s, %s, %s\n\nFlags:\n", onSQLite, onRedis, onEtcd)
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := start(p); err != nil {
		fmt.Fprintln(os.Stderr, "benchlocks:", err)
		os.Exit(1)
	}
}

func start(p plan) error {
	if p.rounds < 1 || p.duration < 10*time.Millisecond {
		return errors.New("needs at least -rounds 1 and -duration 10ms")
	}
	for word := range strings.SplitSeq(p.only, ",") {
		if word != "" && !isRow(word) && !slices.Contains(allStores, word) {
			return fmt.Errorf("-only: %q is neither a row nor a store; see -h", word)
		}
	}
	if err := pin(p.core); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, p)
}

// wants reports whether -only leaves it: a row or a store, of which all are wanted
// where none is named.
func (p plan) wants(word string, isKind func(string) bool) bool {
	words := slices.DeleteFunc(strings.Split(p.only, ","), func(w string) bool { return !isKind(w) })
	return len(words) == 0 || slices.Contains(words, word)
}

// pin puts this program, and all that it will start, on one core: a thread's
// affinity outlives an exec, and all threads of the new program inherit it.
func pin(core int) error {
	var now, want unix.CPUSet
	if core < 0 {
		return nil
	}
	want.Set(core)
	if err := unix.SchedGetaffinity(0, &now); err != nil {
		return fmt.Errorf("read the affinity: %w", err)
	}
	if now == want {
		return nil
	}
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		return fmt.Errorf("pin to core %d (another one: -core N; none: -core -1): %w", core, err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, os.Environ())
}
