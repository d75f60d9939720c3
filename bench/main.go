//go:build linux

// Command bench measures kazahana beside what it is compared with:
//
//	make bin-bench && bin/bench SUITE [flags]
//
// The suites are ids, leases, locks, sequences and clients; "all" runs each of them with
// the same flags. docs/performance.md explains the methods.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/kazahana/kazahana/bench/clients"
	"github.com/kazahana/kazahana/bench/ids"
	"github.com/kazahana/kazahana/bench/leases"
	"github.com/kazahana/kazahana/bench/locks"
	"github.com/kazahana/kazahana/bench/process"
)

type suite struct {
	name string
	run  func(ctx context.Context, args []string) error
}

var suites = []suite{{"ids", ids.Run}, {"leases", leases.Run}, {"locks", locks.RunLocks}, {"sequences", locks.RunSequences}, {"clients", clients.Run}}

func main() {
	// The kernel kills the children when the thread that started them ends: that must
	// not happen before this process does.
	runtime.LockOSThread()
	err := dispatch(os.Args[1:])
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "%s%v\n", process.ErrorPrefix, err)
		os.Exit(1)
	}
}

func dispatch(args []string) error {
	var names []string
	for _, s := range suites {
		names = append(names, s.name)
	}
	if len(args) == 0 {
		return fmt.Errorf("name a suite: %s, or all", strings.Join(names, ", "))
	}
	if ids.IsPart(args[0]) {
		return ids.RunPart(args[0], args[1:])
	}
	if args[0] == "all" {
		return all(names, args[1:])
	}
	i := slices.Index(names, args[0])
	if i < 0 {
		return fmt.Errorf("there is no suite %q; there are %s, and all", args[0], strings.Join(names, ", "))
	}
	// SIGPIPE too: when the table has no reader any more, the servers must still be
	// stopped.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// Writing to what nobody reads fails, here as anywhere: a socket whose peer has hung up
	// is no reason to end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := suites[i].run(ctx, args[1:])
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted; servers stopped, files removed")
	}
	return err
}

// all runs every suite as a process of its own: some pin themselves to a core.
func all(names, flags []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		fmt.Printf("=== %s\n", name)
		cmd := exec.Command(self, append([]string{name}, flags...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Run(); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}
