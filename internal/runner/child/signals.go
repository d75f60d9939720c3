package child

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/kazahana/kazahana/internal/runner"
)

// LastSignal is the greatest number of a signal, a real-time signal of Linux.
const LastSignal = 64

// notPassedOn are the signals that CMD does not get when this process does, apart from
// jobSignals. All others are passed on.
var notPassedOn = []syscall.Signal{
	syscall.SIGKILL, syscall.SIGSTOP, // no process can receive them
	syscall.SIGCHLD,                 // tells of CMD itself
	syscall.SIGURG, syscall.SIGPROF, // the Go runtime sends them to itself
	syscall.SIGPIPE, syscall.SIGXFSZ, // a write of this process failed
	syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGSYS, // this process is broken
	16, 32, 33, 34, // SIGSTKFLT, and those of C libraries: the Go runtime does not deliver them
}

// jobSignals are the signals of job control. On a terminal they are for the whole job, see
// Suspend. Elsewhere they are passed on: programs such as gunicorn and Sidekiq
// receive commands by them.
var jobSignals = []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGCONT}

// PassedOn reports whether CMD gets the signal, when this process does.
func PassedOn(sig syscall.Signal) bool { return !slices.Contains(notPassedOn, sig) }

// Signals delivers the signals that are passed on until stop is called.
func Signals() (signals <-chan syscall.Signal, stop func()) {
	var all []syscall.Signal
	for sig := syscall.Signal(1); sig <= LastSignal; sig++ {
		if !slices.Contains(notPassedOn, sig) && !slices.Contains(jobSignals, sig) {
			all = append(all, sig)
		}
	}
	// A log without a reader must not end this process, and so CMD: with a
	// channel for SIGPIPE, the write fails instead. CMD does not inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	out := make(chan syscall.Signal)
	return out, deliver(out, all...)
}

// deliver has the signals delivered to out until stop is called. If SIGHUP or SIGINT was ignored
// at the start, as under nohup or behind & in a script, it stays ignored, also for CMD. Of the
// others Go does not say whether they were.
func deliver(out chan<- syscall.Signal, signals ...syscall.Signal) (stop func()) {
	raw, done := make(chan os.Signal, LastSignal), make(chan struct{})
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(raw, sig)
		}
	}
	go merge(raw, out, done)
	return func() {
		signal.Stop(raw)
		close(done)
	}
}

// merge passes signals on until done is closed. One that comes again before out has taken it adds
// nothing: so a flood of one signal, while nobody reads out, costs no other.
func merge(raw <-chan os.Signal, out chan<- syscall.Signal, done <-chan struct{}) {
	var pending []syscall.Signal
	for {
		var (
			first syscall.Signal
			to    chan<- syscall.Signal
		)
		if len(pending) > 0 {
			first, to = pending[0], out
		}
		select {
		case sig := <-raw:
			if !slices.Contains(pending, sig.(syscall.Signal)) {
				pending = append(pending, sig.(syscall.Signal))
			}
		case to <- first:
			pending = pending[1:]
		case <-done:
			return
		}
	}
}

// Until returns a context that also ends at a signal that should end this
// process. stop ends it and returns the signal, or 0.
func Until(parent context.Context, signals <-chan syscall.Signal) (_ context.Context, stop func() syscall.Signal) {
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
