package main

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/runner"
)

// signalGrace is how long a signal that has ended a wait may take to be told.
const signalGrace = time.Second

// passedOn are the signals that CMD gets when this process does. SIGTSTP stops
// both.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGTSTP,
}

// notifySignals delivers passedOn until stop is called. What was ignored at the
// start, as under nohup, stays so, for CMD too.
func notifySignals() (signals <-chan syscall.Signal, stop func()) {
	raw, out, done := make(chan os.Signal, 16), make(chan syscall.Signal, 16), make(chan struct{})
	for _, sig := range passedOn {
		if !signal.Ignored(sig) {
			signal.Notify(raw, sig)
		}
	}
	go func() {
		for {
			select {
			case sig := <-raw:
				select {
				case out <- sig.(syscall.Signal):
				default: // nobody reads: more of the same says nothing new
				}
			case <-done:
				return
			}
		}
	}()
	return out, func() {
		signal.Stop(raw)
		close(done)
	}
}

// untilSignal is a context that also ends with a signal that means that this
// process should end. stop ends it, and returns the signal; 0 for none.
func untilSignal(parent context.Context, signals <-chan syscall.Signal) (_ context.Context, stop func() syscall.Signal) {
	ctx, cancel := context.WithCancel(parent)
	came := make(chan syscall.Signal, 1)
	go func() {
		defer close(came)
		for {
			select {
			case signal := <-signals:
				if runner.Ends(signal) {
					came <- signal
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() syscall.Signal {
		cancel()
		return <-came
	}
}

// outcome is the exit status of the signal that ended a wait, 0 for none, or else
// the wait's own error. The end of s.ctx may come before the signal that it means.
func (s *system) outcome(signal syscall.Signal, signals <-chan syscall.Signal, err error) error {
	if signal == 0 && s.ctx.Err() != nil {
		select {
		case signal = <-signals:
		case <-time.After(signalGrace):
			return cmp.Or(err, s.ctx.Err())
		}
	}
	if signal != 0 {
		return exitStatus{code: 128 + int(signal)}
	}
	return err
}
