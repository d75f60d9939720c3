// Command bench measures kazahana beside others:
//
//	make bin-bench && bin/bench SUITE [flags]
//
// The suites are ids, leases, locks (with sequences) and clients; "all" runs each of them with
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
	"syscall"

	"github.com/kazahana/kazahana/bench/clients"
	"github.com/kazahana/kazahana/bench/ids"
	"github.com/kazahana/kazahana/bench/leases"
	"github.com/kazahana/kazahana/bench/locks"
	"github.com/kazahana/kazahana/bench/process"
)

var (
	suites = map[string]func(ctx context.Context, args []string) error{"ids": ids.Run, "leases": leases.Run, "locks": locks.Run, "clients": clients.Run}
	names  = []string{"ids", "leases", "locks", "clients"}
)

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
	switch {
	case len(args) == 0:
		return fmt.Errorf("name a suite: %v, or all", names)
	case ids.Parts[args[0]] != nil:
		return ids.Parts[args[0]](args[1:])
	case args[0] == "all":
		return all(args[1:])
	case suites[args[0]] == nil:
		return fmt.Errorf("there is no suite %q; there are %v, and all", args[0], names)
	}
	// SIGPIPE too: when the table has no reader any more, the servers must still be
	// stopped.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// Writing without a reader fails, here as anywhere: a socket with a peer that has hung up is
	// no reason to end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := suites[args[0]](ctx, args[1:])
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted; servers stopped, files removed")
	}
	return err
}

// all runs every suite as a process of its own: some pin themselves to a core.
func all(flags []string) error {
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
