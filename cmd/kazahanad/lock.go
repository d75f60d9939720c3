package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/runner"
)

// Environment variables that describe the lock to CMD.
const (
	fencingTokenVariable = "KAZAHANA_FENCING_TOKEN"
	lockKeyVariable      = "KAZAHANA_LOCK_KEY"
	leaseIDVariable      = "KAZAHANA_LEASE_ID"
)

// minLockTTL is the shortest term that a program can run under: a shorter one
// leaves no time to end the program.
const minLockTTL = time.Second

// renewPart limits a renewal to this part of the term, so that several fit between
// the first one, after a third, and the end.
const renewPart = 5

const lockUsage = "lock needs a key, and a command after --, for example: kazahanad lock nightly-report -- ./report"

type lockCmd struct {
	clientFlags
	TTL     time.Duration `name:"ttl" default:"30s" help:"Term of the lock, 1s to 24h: how long it stays taken if this process is killed. It is renewed after every third of it."`
	Wait    time.Duration `default:"10s" help:"How long to wait while another owner has the lock, up to 24h; 0s does not wait."`
	Quiet   bool          `short:"q" help:"Print errors only."`
	Key     string        `arg:"" optional:"" help:"Name of the lock."`
	Command []string      `arg:"" optional:"" name:"CMD" help:"After --: the command and its arguments."`
}

// Help is the text that kong prints below the usage line.
func (*lockCmd) Help() string {
	return `Holds a lock for as long as CMD runs: kazahanad lock nightly-report -- ./report. ` +
		`CMD finds its fencing token in KAZAHANA_FENCING_TOKEN; the resource that the lock protects should compare it. ` +
		`KAZAHANA_LOCK_KEY and KAZAHANA_LEASE_ID name the lock. ` +
		`The lock survives a restart of the daemon. CMD is ended (SIGTERM, then SIGKILL) before the lock could be lost. ` +
		`The exit code is CMD's, 128+N if signal N killed it, and 1 if another owner has the lock.`
}

// Run acquires the lock, and runs the command under it.
func (c *lockCmd) Run(s *system) error {
	if err := c.check(s.args); err != nil {
		return err
	}
	s.queueStderr()
	s.queue.OnDrained(s.sayDropped)
	path, err := exec.LookPath(c.Command[0])
	if err != nil {
		return fmt.Errorf("cannot run %s: %w", c.Command[0], err)
	}
	connect := func() (*caller.Client, error) { return c.client(longestCall) } // each call has a time limit of its own
	client, err := connect()
	if err != nil {
		return err
	}
	signals, stop := notifySignals()
	defer stop()
	j := &lockJob{
		lockCmd: c, system: s, path: path, signals: signals,
		held: &heldLock{
			client: client, again: connect, key: c.Key, ttl: c.TTL, timeout: c.Timeout, clock: clock.System{}, requestID: lock.NewLeaseID(),
		},
	}
	defer j.held.close()
	return j.run()
}

// check refuses flags that make no sense. args is the whole command line.
func (c *lockCmd) check(args []string) error {
	dashes := slices.Index(args, "--")
	switch {
	case dashes < 0 || c.Key == "" || len(c.Command) == 0 || len(c.Command) != len(args)-dashes-1:
		return usageError{errors.New(lockUsage)}
	case c.TTL < minLockTTL || c.TTL > lock.MaxTTL:
		return usageError{fmt.Errorf("--ttl %v: must be %v to %v", c.TTL, minLockTTL, lock.MaxTTL)}
	case c.TTL%time.Millisecond != 0:
		return usageError{fmt.Errorf("--ttl %v: must be a whole number of milliseconds", c.TTL)}
	case c.Wait < 0:
		return usageError{fmt.Errorf("--wait %v: must not be negative", c.Wait)}
	case c.Timeout <= 0:
		return usageError{fmt.Errorf("--timeout %v: must be more than 0", c.Timeout)}
	}
	return nil
}

// lockJob runs CMD under a lock.
type lockJob struct {
	*lockCmd
	*system
	path    string // of CMD
	held    *heldLock
	signals <-chan syscall.Signal
}

func (j *lockJob) say(format string, args ...any) {
	if !j.Quiet {
		j.system.say(format, args...)
	}
}

func (j *lockJob) run() error {
	ctx, stop := untilSignal(j.ctx, j.signals)
	err := j.held.reach(ctx)
	if err == nil {
		j.say("acquiring lock %q...", j.Key)
		err = j.held.acquire(ctx, j.Wait)
	}
	if err = j.outcome(stop(), j.signals, err); err != nil {
		j.abandon()
		return err
	}
	l := j.held.lease
	j.say("lock %q is acquired, with the fencing token %d", j.Key, l.FencingToken)
	child := newChild(j.path, j.Command, j.environmentWith(map[string]string{
		fencingTokenVariable: strconv.FormatInt(l.FencingToken, 10), lockKeyVariable: l.LockKey, leaseIDVariable: l.LeaseID,
	}))
	defer child.close()
	// From here on signals go to CMD and do not end this process.
	result, err := runner.Run(context.WithoutCancel(j.ctx), runner.Config{
		Clock: j.held.clock, Holding: j.held, AskedAt: j.held.sentAt, Term: j.held.end - j.held.sentAt,
		Timeout: min(j.Timeout, j.TTL/renewPart), Program: child, Signals: j.signals, Say: j.say,
	})
	j.leave(result)
	return exitOf(j.path, result, err)
}

// abandon frees the lock if CMD will not run: it may have been granted at the
// moment of the signal, or with an answer that was lost.
func (j *lockJob) abandon() {
	if !j.held.inDoubt {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.ctx), j.Timeout)
	defer cancel()
	ctx, stop := untilSignal(ctx, j.signals)
	defer stop()
	if err := j.held.undo(ctx); err != nil {
		j.say("if lock %q was acquired after all, it will be free again after its term of %v: %v", j.Key, j.TTL, err)
	}
}

// leave releases the lock after CMD's end, unless it was lost.
func (j *lockJob) leave(result runner.Result) {
	left := j.held.end - j.held.clock.Boot()
	if left <= 0 || lostForGood(result.Lost) {
		return
	}
	j.say("releasing lock %q...", j.Key)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.ctx), min(j.Timeout, left))
	defer cancel()
	ctx, stop := untilSignal(ctx, j.signals)
	defer stop()
	if err := j.held.release(ctx); err != nil {
		j.say("not released; it will be free again in %v at most: %v", left.Round(time.Millisecond), err)
	}
}
