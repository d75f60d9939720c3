package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/config"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/backend"
	"github.com/kazahana/kazahana/internal/runner"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// placeholder in an argument of CMD stands for the machine ID.
const placeholder = "{}"

// machineIDVariable tells CMD its machine ID.
const machineIDVariable = "KAZAHANA_MACHINE_ID"

// Acquires that fail because the provider is away are repeated so often.
const (
	runAttempts   = 3
	runRetryAfter = time.Second
)

// signalGrace is how long a signal that has ended a wait may take to be told.
const signalGrace = time.Second

type runCmd struct {
	providerFlags
	Min     *int64            `placeholder:"N" help:"Lowest machine ID that CMD can use (default the lowest there is)."`
	Max     *int64            `placeholder:"N" help:"Highest machine ID that CMD can use (default the highest there is)."`
	Meta    map[string]string `placeholder:"KEY=VALUE" help:"Text added to the lease, for those who list leases."`
	Delay   time.Duration     `default:"0s" help:"Wait so long before CMD is started, for former holders of the machine ID whose lease was lost to end."`
	Quiet   bool              `short:"q" help:"Say nothing but errors."`
	Command []string          `arg:"" optional:"" name:"CMD" help:"After --: the command and its arguments, in which {} stands for the machine ID."`
}

// Help is the text that kong prints below the usage line.
func (*runCmd) Help() string {
	return `Leases a machine ID for as long as CMD runs: kazahanad run --max 1023 -- katsubushi -worker-id={}. ` +
		`CMD finds it in KAZAHANA_MACHINE_ID too. CMD is told to end (SIGTERM, then SIGKILL) before the lease would. ` +
		`The exit code is CMD's, 128+N if signal N killed it.`
}

// Run leases a machine ID, and runs the command with it.
func (c *runCmd) Run(s *system) error {
	if err := c.check(s.args); err != nil {
		return err
	}
	path, err := exec.LookPath(c.Command[0])
	if err != nil {
		return fmt.Errorf("cannot run %s: %w", c.Command[0], err)
	}
	settings, err := c.settings(s)
	if err != nil {
		return err
	}
	j := &job{runCmd: c, system: s, settings: settings, path: path, clock: clock.System{}, service: settings.DefaultService}
	if c.Service != "" {
		j.service = c.Service
	}
	if j.url, err = withRange(settings.Provider, c.Min, c.Max); err != nil {
		return usageError{err}
	}
	if j.provider, err = backend.Open(j.url, backend.Options{}); err != nil {
		return usageError{fmt.Errorf("provider: %w", err)}
	}
	signals, stop := notifySignals()
	defer stop()
	j.signals = signals
	err = j.run()
	if closeErr := j.provider.Close(); err == nil {
		err = closeErr
	}
	return err
}

// check refuses what nobody can have meant. args are those of the whole command
// line: whoever leaves out the -- probably wants the daemon.
func (c *runCmd) check(args []string) error {
	dashes := slices.Index(args, "--")
	if dashes < 0 || len(c.Command) == 0 || len(c.Command) != len(args)-dashes-1 {
		return usageError{errors.New("run needs a command after --, for example: kazahanad run -- CMD {}; the daemon is started with: kazahanad serve")}
	}
	if c.Delay < 0 {
		return usageError{fmt.Errorf("--delay %v: a delay is not negative", c.Delay)}
	}
	return nil
}

// withRange limits the provider to the machine IDs from low to high.
func withRange(rawURL string, low, high *int64) (string, error) {
	if low == nil && high == nil || !takesIDs(rawURL) {
		return rawURL, nil // a machine ID beyond the limits is refused when it comes
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL, nil // which opening it explains without showing a password
	}
	q := u.Query()
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return "", fmt.Errorf("provider: %w", err)
	}
	all := terms.Range()
	ids := all
	if low != nil {
		ids.Low = *low
	}
	if high != nil {
		ids.End = *high + 1
	}
	if ids.Low < all.Low || ids.End > all.End || ids.Low >= ids.End {
		return "", fmt.Errorf("--min %d and --max %d: the provider has machine IDs %v, and --min must not be above --max", ids.Low, ids.End-1, all)
	}
	q.Set("ids", ids.String())
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// job is a run under way.
type job struct {
	*runCmd
	*system
	settings *config.Serve
	path     string // of CMD
	url      string // of the provider; may hold a password
	service  string
	provider provider.Provider
	clock    clock.Source
	signals  <-chan syscall.Signal
}

func (j *job) say(format string, args ...any) {
	if !j.Quiet {
		j.system.say(format, args...)
	}
}

// say tells the person at the terminal, or the log, what goes on.
func (s *system) say(format string, args ...any) {
	fmt.Fprintf(s.err, "%s kazahanad: %s\n", s.now().Format("2006/01/02 15:04:05"), fmt.Sprintf(format, args...))
}

func (j *job) run() error {
	j.say("getting a machine ID from %s...", j.provider.Info().URL)
	extender, err := j.extender()
	if err != nil {
		return err
	}
	l, askedAt, err := j.acquire()
	if err != nil {
		return j.orInterrupted(j.signals, err)
	}
	if err := j.suits(l); err != nil {
		j.handBack(l, false)
		return err
	}
	j.say("machine ID: %d, until %s unless extended", l.ID, snowflake.FormatMS(l.Expired))
	child := newChild(j.path, j.commandFor(l.ID), j.environmentWith(map[string]string{machineIDVariable: strconv.FormatInt(l.ID, 10)}))
	defer child.close()
	held := runner.HoldLease(l, extender, j.service, j.clock, j.say)
	// The signals that end this process are CMD's matter from here on.
	result, err := runner.Run(context.WithoutCancel(j.ctx), runner.Config{
		Clock: j.clock, Holding: held, AskedAt: askedAt, Term: held.Term, BeginMS: l.Created, Delay: j.Delay,
		Timeout: j.settings.ProviderTimeout, Program: child, Signals: j.signals, Say: j.say,
	})
	j.leave(held, result)
	return exitOf(j.path, result, err)
}

// exitOf is the exit code that a run's end means.
func exitOf(path string, result runner.Result, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("cannot run %s: %w", path, err)
	case result.Signal != 0:
		return exitStatus{code: 128 + int(result.Signal)}
	case result.Lost != nil && result.Exit.Status() == exitOK:
		return result.Lost // CMD ended well, and was not meant to
	case result.Lost != nil:
		return exitStatus{code: result.Exit.Status(), error: result.Lost}
	case result.Exit.Status() != exitOK:
		return exitStatus{code: result.Exit.Status()}
	}
	return nil
}

// extender is the provider as one that can extend leases, which is known for
// certain only once it has been reached.
func (j *job) extender() (provider.Extender, error) {
	ctx, cancel := context.WithTimeout(j.ctx, j.settings.ProviderTimeout)
	defer cancel()
	p, err := backend.Opened(ctx, j.provider)
	if err != nil {
		p = j.provider // the acquire will say so, or find that it is back
	}
	extender, ok := p.(provider.Extender)
	if !ok {
		return nil, fmt.Errorf("provider %s: it cannot extend a lease, which run needs: CMD keeps its machine ID for as long as it runs", j.provider.Info().Name)
	}
	return extender, nil
}

// acquire leases one machine ID. askedAt is from before the request.
func (j *job) acquire() (l lease.Lease, askedAt time.Duration, err error) {
	meta := leaseMeta(j.service, j.settings.Meta)
	maps.Copy(meta, map[string]string{"command": j.Command[0]})
	maps.Copy(meta, j.Meta)
	req := provider.AcquireRequest{Service: j.service, Meta: meta, ThroughputPerMS: 1, RequestID: provider.NewSecret()}
	askedAt = j.clock.Boot() // an answer may be that to the first attempt
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(j.ctx, j.settings.ProviderTimeout)
		leases, err := j.provider.Acquire(ctx, req)
		cancel()
		if err == nil {
			return leases[0], askedAt, leases[0].Validate()
		}
		if decided(err) || attempt == runAttempts || j.ctx.Err() != nil {
			return lease.Lease{}, 0, fmt.Errorf("no machine ID: %w", err)
		}
		j.say("trying again: %v", err)
		select {
		case <-time.After(runRetryAfter):
		case <-j.ctx.Done():
		}
	}
}

// decided reports whether an acquire failed for a reason that lasts.
func decided(err error) bool {
	var full *provider.FullError
	var fenced *provider.FencedError
	return errors.As(err, &full) || errors.As(err, &fenced) || errors.Is(err, provider.ErrInvalid) || errors.Is(err, provider.ErrNone)
}

// suits refuses a lease that CMD cannot use.
func (j *job) suits(l lease.Lease) error {
	if j.Min != nil && l.ID < *j.Min || j.Max != nil && l.ID > *j.Max {
		return fmt.Errorf("provider %s granted machine ID %d, which is outside --min and --max, and does not let a client choose", j.provider.Info().URL, l.ID)
	}
	return runner.CheckClock(l, j.now().UnixMilli())
}

func (j *job) commandFor(machineID int64) []string {
	argv := slices.Clone(j.Command)
	for i := range argv[1:] {
		argv[i+1] = strings.ReplaceAll(argv[i+1], placeholder, strconv.FormatInt(machineID, 10))
	}
	return argv
}

// environmentWith is this process's environment with other values of variables,
// for CMD.
func (s *system) environmentWith(variables map[string]string) []string {
	env := slices.DeleteFunc(slices.Clone(s.env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := variables[name]
		return replaced
	})
	for name, value := range variables {
		env = append(env, name+"="+value)
	}
	return env
}

// orInterrupted is the exit code of a signal that came before CMD could be
// started, or the error.
func (s *system) orInterrupted(signals <-chan syscall.Signal, err error) error {
	if s.ctx.Err() != nil {
		select {
		case signal := <-signals:
			return exitStatus{code: 128 + int(signal)}
		case <-time.After(signalGrace):
		}
	}
	return err
}

// leave gives back what a run leaves. CMD made IDs by its own rules, so nothing
// is known of what it dated how: the machine ID stays taken until the lease's
// end. Where this host's clock is past that, or was, so may be CMD's IDs, and the
// lease runs out by itself, with its quarantine.
func (j *job) leave(held *runner.LeaseHolding, r runner.Result) {
	l := held.Lease
	switch {
	case !r.Started:
		j.say("releasing machine ID %d...", l.ID)
		j.handBack(l, false)
	case errors.Is(r.Lost, provider.ErrBadSignature), errors.Is(r.Lost, provider.ErrNotFound), errors.Is(r.Lost, provider.ErrConflict):
		// It is not ours to give back.
	case held.Passed || j.now().UnixMilli() >= l.Expired:
		j.say("machine ID %d stays taken until its lease has run out, at %s", l.ID, snowflake.FormatMS(l.ReservedUntil))
	default:
		j.say("releasing machine ID %d as of the lease's end, %s...", l.ID, snowflake.FormatMS(l.Expired))
		j.handBack(l, true)
	}
}

// handBack releases the lease, as of now or as of its end. One that is not heard
// of runs out by itself.
func (j *job) handBack(l lease.Lease, atEnd bool) {
	timestampMS := j.now().UnixMilli()
	if atEnd {
		timestampMS = l.Expired - 1
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.ctx), j.settings.ProviderTimeout)
	defer cancel()
	err := j.provider.Release(ctx, provider.ReleaseRequest{
		Service: j.service, ID: l.ID, BitSeq: l.BitSeq, TimestampMS: timestampMS, AtEnd: atEnd,
		Signature: lease.Sign(l.Secret, l.ID, timestampMS),
	})
	if err != nil {
		j.say("not released, the lease runs out by itself: %v", err)
	}
}

// exitStatus is an exit code that is not kazahanad's own, with what there is to
// say about it.
type exitStatus struct {
	code int
	error
}

func (e exitStatus) Error() string {
	if e.error == nil {
		return ""
	}
	return e.error.Error()
}

func (e exitStatus) Unwrap() error { return e.error }

var _ runner.Program = (*child)(nil)

// stdio is what CMD shares with this process.
func stdio() []uintptr { return []uintptr{os.Stdin.Fd(), os.Stdout.Fd(), os.Stderr.Fd()} }
