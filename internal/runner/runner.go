package runner

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Program is the foreign program. Its methods do not wait for it, but for
// Suspend.
type Program interface {
	// Start starts it, once.
	Start() error
	// Signal passes a signal on to it.
	Signal(syscall.Signal)
	// Terminate sends SIGTERM, and Kill SIGKILL, to it and what it started.
	Terminate()
	Kill()
	// Ended delivers how it ended, once.
	Ended() <-chan Exit
	// Stopped tells that job control has stopped it.
	Stopped() <-chan struct{}
	// Suspend stops it and this process too, and returns when this process goes
	// on. Resume lets it go on as well.
	Suspend()
	Resume()
}

// Exit is how a program ended.
type Exit struct {
	Code   int
	Signal syscall.Signal // that killed it; 0 for none
}

// Status is the exit code as shells tell it.
func (e Exit) Status() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// Config is one run.
type Config struct {
	Clock    clock.Source
	Extender provider.Extender
	Service  string
	Lease    lease.Lease
	AskedAt  time.Duration // reading of Clock.Boot from before the lease was asked for
	Delay    time.Duration // to wait after the clock has reached the lease's beginning
	Timeout  time.Duration // of one call to the provider
	Program  Program
	Signals  <-chan syscall.Signal // that this process received
	Say      func(format string, args ...any)
}

// Result is what became of a run.
type Result struct {
	Lease   lease.Lease // with the times that it has now
	Started bool
	Exit    Exit           // of a program that was started
	Signal  syscall.Signal // that came before the program was started; 0 for none
	Lost    error          // why the program was told to end, or was not started; nil when neither
}

// Run waits until the program may be started, starts it, extends the lease while
// it runs, and returns when it has ended. The error says why it could not be
// started.
func Run(ctx context.Context, c Config) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{Config: c, machine: newMachine(c.Lease, c.AskedAt, c.Delay), answers: make(chan answer, 1)}
	r.announceWait()
	err := r.loop(ctx)
	cancel()
	if r.machine.asking {
		r.answered(<-r.answers) // it may have been extended all the same
	}
	r.result.Lease = r.machine.lease
	return r.result, err
}

func (r *run) loop(ctx context.Context) error {
	for {
		due, pause := r.machine.next(r.Clock.Boot(), r.wallMS())
		if due != wait {
			if over, err := r.do(ctx, due); over {
				return err
			}
			continue
		}
		if r.suspended {
			// Only now: what a lease that ended meanwhile demands has been done.
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
	answers   chan answer // of the extension under way
	suspended bool
	result    Result
}

type answer struct {
	lease lease.Lease
	err   error
}

func (r *run) wallMS() int64 { return r.Clock.Wall() / int64(time.Millisecond) }

// do does what is due, and reports whether the run is over.
func (r *run) do(ctx context.Context, due action) (over bool, err error) {
	boot := r.Clock.Boot()
	switch due {
	case start:
		r.Say("starting...")
		if err := r.Program.Start(); err != nil {
			return true, err
		}
		r.result.Started = true
		r.machine.started()
	case extend:
		r.machine.asked(boot)
		go func(l lease.Lease) {
			ctx, cancel := context.WithTimeout(ctx, r.Timeout)
			defer cancel()
			longer, err := r.Extender.Extend(ctx, r.Service, l)
			r.answers <- answer{longer, err}
		}(r.machine.lease)
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
		r.machine.killedNow()
		r.Program.Kill()
	case abandon:
		r.result.Lost = r.machine.cause(boot)
		return true, nil
	}
	return false, nil
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
	case <-r.Program.Stopped():
		r.suspend()
	case signal := <-r.Signals:
		switch {
		case r.result.Started && signal == syscall.SIGTSTP:
			r.suspend()
		case r.result.Started:
			r.Program.Signal(signal)
		case ends(signal):
			r.result.Signal = signal
			return true
		}
	}
	return false
}

// ends reports whether a signal ends a program that does not care.
func ends(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

func (r *run) suspend() {
	r.suspended = true
	r.Program.Suspend()
}

// answered tells the machine, and a reader of the log what is worth knowing.
func (r *run) answered(a answer) {
	failures := r.machine.failures
	r.machine.answered(r.Clock.Boot(), a.lease, a.err)
	switch {
	case a.err != nil && r.machine.lost == nil && !errors.Is(a.err, context.Canceled):
		r.Say("the lease was not extended, trying again: %v", a.err)
	case a.err == nil && failures > 0:
		r.Say("the lease is extended, after %d failures", failures)
	}
	if l := r.machine.lease; r.wallMS() >= l.Expired {
		r.Say("this host's clock is ahead of the provider's, past the lease's end at %s: IDs dated then can be repeated by the machine ID's next holder; see that both clocks are right",
			snowflake.FormatMS(l.Expired))
	}
}

// announceWait says what the start waits for.
func (r *run) announceWait() {
	if behind := r.Lease.Created - r.wallMS(); behind > 0 {
		r.Say("this host's clock is behind the provider's: waiting %v for the lease to begin at %s",
			time.Duration(behind)*time.Millisecond, snowflake.FormatMS(r.Lease.Created))
	}
	if r.Delay > 0 {
		r.Say("waiting %v more, as --delay says, for others with the same machine ID to end", r.Delay)
	}
}

// CheckClock reports, as an error, that the local clock is past the lease, which
// was granted just now.
func CheckClock(l lease.Lease, wallMS int64) error {
	if wallMS < l.Expired {
		return nil
	}
	return fmt.Errorf("this host's clock is %v ahead of the provider's: the lease has ended by it before it began; see that both clocks are right (NTP)",
		(time.Duration(wallMS-l.Created) * time.Millisecond).Round(time.Second))
}
