package main

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/runner"
	"github.com/kazahana/kazahana/internal/runner/child"
)

// Environment variables that describe the lock to CMD.
const (
	fencingTokenVariable = "KAZAHANA_FENCING_TOKEN"
	lockKeyVariable      = "KAZAHANA_LOCK_KEY"
	leaseIDVariable      = "KAZAHANA_LEASE_ID"
)

// renewPart limits a renewal to this part of the term, so that several fit between
// the first one, after a third, and the end.
const renewPart = 5

const lockUsage = "lock needs a key, and a command after --, for example: kazahanad lock nightly-report -- ./report"

type lockCmd struct {
	clientFlags
	// A shorter term leaves no time to end the program.
	TTL     time.Duration `name:"ttl" type:"milliseconds" min:"1s" max:"24h" default:"30s" help:"Term of the lock, 1s to 24h: how long it stays taken if this process is killed. It is renewed after every third of it."`
	Wait    time.Duration `name:"wait" default:"10s" help:"How long to wait while another owner has the lock, up to 24h; 0s does not wait."`
	Quiet   bool          `name:"quiet" short:"q" help:"Print errors only."`
	Key     string        `arg:"KEY" optional:"" help:"Name of the lock."`
	Command []string      `arg:"-- CMD" optional:"" help:"After --: the command and its arguments."`
}

// Help is the text below the usage line.
func (*lockCmd) Help() string {
	return `Holds a lock for as long as CMD runs: kazahanad lock nightly-report -- ./report. ` +
		`CMD finds its fencing token in KAZAHANA_FENCING_TOKEN; the resource that the lock protects should compare it. ` +
		`KAZAHANA_LOCK_KEY and KAZAHANA_LEASE_ID name the lock. ` +
		`The lock survives a restart of the daemon. CMD is ended (SIGTERM, then SIGKILL) before the lock could be lost. ` +
		`The exit code is CMD's, 128+N if signal N killed it, and 1 if another owner has the lock.`
}

// Run acquires the lock, and runs the command under it.
func (c *lockCmd) Run(s *system) error {
	path, err := s.program(c.Command, lockUsage)
	if err != nil {
		return err
	}
	signals, stop := child.Signals()
	defer stop()
	j := &lockJob{
		lockCmd: c, system: s, path: path, signals: signals,
		held: &runner.LockHolding{
			Key: c.Key, TTL: c.TTL, Timeout: c.Timeout, Clock: clock.System{}, Connect: func() *caller.Client { return c.client(longestCall) },
		},
	}
	defer j.held.Close()
	return j.run()
}

// lockJob runs CMD under a lock.
type lockJob struct {
	*lockCmd
	*system
	path    string // of CMD
	held    *runner.LockHolding
	signals <-chan syscall.Signal
}

func (j *lockJob) say(format string, args ...any) {
	if !j.Quiet {
		j.system.say(format, args...)
	}
}

func (j *lockJob) run() error {
	ctx, stop := child.Until(j.ctx, j.signals)
	err := j.held.Reach(ctx)
	if err == nil {
		j.say("acquiring lock %q...", j.Key)
		err = refusedUsage(j.held.Acquire(ctx, j.Wait))
	}
	if err = j.outcome(stop(), j.signals, err); err != nil {
		j.abandon()
		return err
	}
	l := j.held.Lease
	j.say("lock %q is acquired, with the fencing token %d", j.Key, l.FencingToken)
	program := child.New(j.path, j.Command, j.environmentWith(map[string]string{
		fencingTokenVariable: strconv.FormatInt(l.FencingToken, 10), lockKeyVariable: l.LockKey, leaseIDVariable: l.LeaseID,
	}))
	defer program.Close()
	// From here on signals go to CMD and do not end this process.
	result, err := runner.Run(context.WithoutCancel(j.ctx), runner.Config{
		Clock: j.held.Clock, Holding: j.held, AskedAt: j.held.SentAt, Term: j.held.End - j.held.SentAt,
		Timeout: min(j.Timeout, j.TTL/renewPart), Program: program, Signals: j.signals, Say: j.say,
	})
	j.leave(result)
	return exitOf(j.path, result, err)
}

// abandon frees the lock if CMD will not run: it may have been granted at the
// moment of the signal, or with an answer that was lost.
func (j *lockJob) abandon() {
	if !j.held.InDoubt {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.ctx), j.Timeout)
	defer cancel()
	ctx, stop := child.Until(ctx, j.signals)
	defer stop()
	if err := j.held.Undo(ctx); err != nil {
		j.say("if lock %q was acquired after all, it will be free again after its term of %v: %v", j.Key, j.TTL, err)
	}
}

// leave releases the lock after CMD's end, unless it was lost.
func (j *lockJob) leave(result runner.Result) {
	left := j.held.End - j.held.Clock.Boot()
	if lost, is := errors.AsType[*runner.LostError](result.Lost); left <= 0 || is && lost.Gone {
		return
	}
	j.say("releasing lock %q...", j.Key)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.ctx), min(j.Timeout, left))
	defer cancel()
	ctx, stop := child.Until(ctx, j.signals)
	defer stop()
	if err := j.held.Release(ctx); err != nil {
		j.say("not released; it will be free again in %v at most: %v", left.Round(time.Millisecond), err)
	}
}
