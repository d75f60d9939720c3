package runner

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Holding is the lease or the lock that the program needs while it runs.
type Holding interface {
	// Name is for messages, "the lease of machine ID 17" for example.
	Name() string
	// Extend asks for another term. sent is the reading of Clock.Boot before the
	// call, end the reading at which the holding ends so far; the result is its new
	// end. A *LostError means that asking again cannot help. Calls do not overlap,
	// and none is under way when Run has returned.
	Extend(ctx context.Context, sent, end time.Duration) (until time.Duration, err error)
}

// LostError says that the holding cannot be extended any more, and why.
type LostError struct {
	Err  error
	Gone bool // another holder may have it by now
}

func (e *LostError) Error() string { return e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// Program is the foreign program. Only Suspend waits for it.
type Program interface {
	// Start starts it, once.
	Start() error
	// Signal passes a signal on to it.
	Signal(syscall.Signal)
	// Terminate sends SIGTERM, and Kill SIGKILL, to it and its children.
	Terminate()
	Kill()
	// Ended delivers how it ended, once.
	Ended() <-chan Exit
	// Stopped delivers the signal of job control that has stopped it, or that this process
	// received.
	Stopped() <-chan syscall.Signal
	// Suspend stops the program and this process, and returns when this process goes on,
	// at once where nothing has to stop. It reports whether the program should go on as
	// well; Resume makes it.
	Suspend(syscall.Signal) (goOn bool)
	Resume()
}

// Exit is how a program ended.
type Exit struct {
	Code   int
	Signal syscall.Signal // that killed it; 0 for none
	Alone  bool           // none of the processes that it started is left
}

// Status is the exit code by the convention of shells.
func (e Exit) Status() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// Config describes one run.
type Config struct {
	Clock   clock.Source
	Holding Holding
	AskedAt time.Duration // reading of Clock.Boot from before it was asked for
	Term    time.Duration // how long it lasts from then on
	BeginMS int64         // Clock.Wall in Unix ms before which the program must not start; 0 = it may at once
	Delay   time.Duration // to wait after that
	Timeout time.Duration // of one call
	// Verify returns a *LostError if another holder has the lease; other errors mean
	// that it is not known. It is called every VerifyEvery, never during a call of
	// Extend. Nil if the provider cannot verify.
	Verify      func(context.Context) error
	VerifyEvery time.Duration
	Program     Program
	Signals     <-chan syscall.Signal // that this process received
	Say         func(format string, args ...any)
}

// Result is the outcome of a run.
type Result struct {
	Started bool
	Exit    Exit           // of a program that was started
	Signal  syscall.Signal // that came before the program was started; 0 for none
	Lost    error          // why the program was ended, or not started; else nil
	// LastMS is the latest Unix ms that a started program can have read from this
	// host's clock, or counted on from an earlier reading. With Unwatched the clock may
	// have shown a later one while this process was stopped.
	LastMS    int64
	Unwatched bool
}

// Run waits until the program may start, starts it, extends the holding while it runs,
// and returns when it has ended. The error says why it could not be started.
func Run(ctx context.Context, c Config) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{Config: c, machine: newMachine(c), answers: make(chan answer, 1)}
	r.announceWait()
	err := r.loop(ctx)
	r.look()
	r.result.LastMS, r.result.Unwatched = r.dates.lastMS(), r.dates.gap
	cancel()
	if r.machine.asking {
		r.answered(<-r.answers) // it may have been extended after all
	}
	return r.result, err
}

// look reads the clocks.
func (r *run) look() (boot time.Duration, wallMS int64) {
	boot = r.Clock.Boot()
	wall := r.Clock.Wall()
	r.dates.look(boot, wall)
	return boot, wall / int64(time.Millisecond)
}

func (r *run) loop(ctx context.Context) error {
	for {
		due, pause := r.machine.next(r.look())
		if due != wait {
			if over, err := r.do(ctx, due); over {
				return err
			}
			continue
		}
		if r.suspended {
			// Only now, when an end that came meanwhile has been handled.
			r.suspended = false
			r.Program.Resume()
		}
		if over := r.await(pause); over {
			return nil
		}
	}
}

// run is a Run under way.
type run struct {
	Config
	machine   *machine
	dates     dates       // of the program
	answers   chan answer // of the call under way
	suspended bool
	result    Result
}

type answer struct {
	to    action        // extend or verify
	until time.Duration // of an extension
	err   error
}

// do carries out the due action, and reports whether the run is over.
func (r *run) do(ctx context.Context, due action) (over bool, err error) {
	boot := r.Clock.Boot()
	switch due {
	case start:
		r.Say("starting...")
		r.dates = dates{} // earlier readings do not matter
		r.look()
		if err := r.Program.Start(); err != nil {
			return true, err
		}
		r.result.Started = true
		r.machine.phase = running
	case extend, verify:
		r.machine.asked(boot)
		go func(end time.Duration) { r.answers <- r.ask(ctx, due, boot, end) }(r.machine.end)
	case terminate:
		r.result.Lost = r.machine.cause(boot)
		r.Say("%v: sending SIGTERM", r.result.Lost)
		r.machine.terminated(boot)
		r.Program.Terminate()
	case kill:
		if r.result.Lost == nil {
			r.result.Lost = r.machine.cause(boot)
		}
		r.Say("%v: sending SIGKILL", r.result.Lost)
		r.machine.phase = killed
		r.Program.Kill()
	case abandon:
		r.result.Lost = r.machine.cause(boot)
		return true, nil
	}
	return false, nil
}

// ask makes the call that is due.
func (r *run) ask(ctx context.Context, due action, sent, end time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	if due == verify {
		return answer{to: verify, err: r.Verify(ctx)}
	}
	until, err := r.Holding.Extend(ctx, sent, end)
	return answer{to: extend, until: until, err: err}
}

// await waits until something happens, and reports whether the run is over.
func (r *run) await(pause time.Duration) (over bool) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case a := <-r.answers:
		r.answered(a)
	case r.result.Exit = <-r.Program.Ended():
		return true
	case signal := <-r.Program.Stopped():
		r.suspended = r.Program.Suspend(signal)
	case signal := <-r.Signals:
		switch {
		case r.result.Started:
			r.Program.Signal(signal)
		case Ends(signal):
			r.result.Signal = signal
			return true
		}
	}
	return false
}

// Ends reports whether a signal is sent to end a program, by a service manager's watchdog
// for example.
func Ends(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT || s == syscall.SIGABRT
}

// answered passes the answer to the machine, and logs it if it matters.
func (r *run) answered(a answer) {
	m := r.machine
	failures, doubts := m.failures, m.doubts
	if a.to == extend {
		m.extended(r.Clock.Boot(), a.until, a.err)
	} else {
		m.verified(a.err)
	}
	switch {
	case m.lost != nil || errors.Is(a.err, context.Canceled):
	case m.failures > failures:
		r.Say("%s was not extended, trying again: %v", m.name, a.err)
	case failures > 0 && m.failures == 0:
		r.Say("%s is extended, after %d failures", m.name, failures)
	case a.to == verify && errors.Is(a.err, errors.ErrUnsupported):
		r.Say("the provider cannot tell whether %s is still ours: a takeover is noticed at an extension only", m.name)
	case doubts == 0 && m.doubts > 0:
		r.Say("the provider does not say whether %s is still ours, going on: %v", m.name, a.err)
	case doubts > 0 && m.doubts == 0:
		r.Say("%s is still ours; %d questions about it had failed", m.name, doubts)
	}
}

// announceWait logs what the start waits for.
func (r *run) announceWait() {
	if behind := r.BeginMS - r.Clock.Wall()/int64(time.Millisecond); behind > 0 {
		r.Say("this host's clock is behind the provider's: waiting %v for the lease to begin at %s",
			time.Duration(behind)*time.Millisecond, snowflake.FormatMS(r.BeginMS))
	}
	if r.Delay > 0 {
		r.Say("waiting %v more for a former holder of the machine ID to end (--delay)", r.Delay)
	}
}
