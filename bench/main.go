//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/kazahana/kazahana/bench/process"
)

// subModes are run as processes of their own.
var subModes = map[string]func(args []string) error{
	"load":       loadMain,
	"hold":       holdMain,
	"echo":       echoMain,
	"generator":  generatorMain,
	"rendezvous": rendezvousMain,
	"start":      startMain,
	"disturb":    disturbMain,
}

func main() {
	// The kernel kills the children when the thread that started them ends:
	// that must not happen before this process does.
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
	if len(args) > 0 {
		if subMode, ok := subModes[args[0]]; ok {
			return subMode(args[1:])
		}
	}
	p, err := parsePlan(args, os.Stderr)
	if err != nil {
		return err
	}
	// SIGPIPE, too: when nobody reads the table any more, the servers must
	// still be stopped.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	err = run(ctx, p, os.Stdout, os.Stderr)
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted; servers stopped, files removed")
	}
	return err
}
