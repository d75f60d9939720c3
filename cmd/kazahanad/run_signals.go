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

// signalGrace is how long to wait for the signal that has ended s.ctx.
const signalGrace = time.Second

// passedOn are the signals that CMD gets when this process does.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGALRM, syscall.SIGWINCH,
}

// notifySignals delivers passedOn until stop is called.
func notifySignals() (signals <-chan syscall.Signal, stop func()) {
	all := make(chan syscall.Signal, 16)
	return all, deliver(all, passedOn...)
}

// deliver has the signals delivered to out until stop is called. If SIGHUP or SIGINT was
// ignored at the start, as under nohup or behind & in a script, it stays ignored, also for
// CMD. Of the others Go does not say whether they were.
func deliver(out chan<- syscall.Signal, signals ...os.Signal) (stop func()) {
	raw, done := make(chan os.Signal, cap(out)), make(chan struct{})
	for _, sig := range signals {
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
				default: // the buffer is full: further signals add nothing
				}
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(raw)
		close(done)
	}
}

// untilSignal returns a context that also ends at a signal that should end this
// process. stop ends it and returns the signal, or 0.
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

// outcome is the exit status for the signal that ended a wait, or else the wait's
// own error. s.ctx may end before its signal arrives here.
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
