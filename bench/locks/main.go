//go:build linux

// Package locks measures locks and sequences on SQLite, Redis and etcd: in
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
package locks

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/bench/suite"
)

// plan is what the command line asks for.
type plan struct {
	suite.Plan
	rows []row
	only string // rows and stores, separated by commas; "" = all
}

// RunLocks is the suite of locks.
func RunLocks(ctx context.Context, args []string) error {
	return start(ctx, "locks", ofLocks, args)
}

// RunSequences is the suite of sequences.
func RunSequences(ctx context.Context, args []string) error {
	return start(ctx, "sequences", ofSequences, args)
}

func start(ctx context.Context, name string, rows []row, args []string) error {
	p := plan{Plan: suite.Plan{Rounds: 5, Duration: time.Second}}
	about := "Rows, for -only:\n"
	for _, r := range rows {
		about += fmt.Sprintf("  %-8s  %s\n", r.key, r.title)
	}
	about += "Stores: " + strings.Join(allStores, ", ") + "\n"
	err := p.Parse(name, about, args, os.Stderr, func(flags *flag.FlagSet) {
		flags.StringVar(&p.only, "only", "", "measure these `rows and stores`, separated by commas (default all)")
	})
	if err != nil {
		return err
	}
	for word := range strings.SplitSeq(p.only, ",") {
		if word != "" && !isRow(word) && !isStore(word) {
			return fmt.Errorf("-only: %q is neither a row nor a store; see -h", word)
		}
	}
	p.rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !p.wants(r.key, isRow) })
	if len(p.rows) == 0 {
		return nil // -only names rows of the other suite
	}
	if err := pin(p.Core); err != nil {
		return err
	}
	return run(ctx, name, p)
}

func isRow(word string) bool {
	return slices.ContainsFunc(slices.Concat(ofLocks, ofSequences), func(r row) bool { return r.key == word })
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
