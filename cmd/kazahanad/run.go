package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/runner"
	"github.com/kazahana/kazahana/internal/runner/child"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// runUsage is for a user who leaves out the --, and probably wants the daemon.
const runUsage = "run needs a command after --, for example: kazahanad run -- CMD {}; the daemon is started with: kazahanad serve"

// machineIDVariable tells CMD its machine ID.
const machineIDVariable = "KAZAHANA_MACHINE_ID"

type runCmd struct {
	providerFlags
	VerifyInterval string         `name:"verify-interval" placeholder:"DURATION" help:"How often to ask the provider whether the machine ID is still CMD's, 1ms or more (default as for serve)."`
	Min            *int64         `name:"min" placeholder:"N" help:"Lowest machine ID that CMD can use (default the pool's lowest)."`
	Max            *int64         `name:"max" placeholder:"N" help:"Highest machine ID that CMD can use (default the pool's highest)."`
	Meta           config.Meta    `name:"meta" placeholder:"KEY=VALUE,..." help:"Text added to the lease, shown in lists of leases."`
	Env            []string       `name:"env" placeholder:"NAME" help:"Another variable that gives CMD its machine ID; NAME=TEXT sets a text, with the machine ID in place of {}. Repeatable."`
	Placeholder    string         `name:"placeholder" default:"{}" placeholder:"TEXT" help:"What stands for the machine ID in CMD's arguments and in --env. With an empty text, --placeholder=, nothing does, for a CMD whose arguments contain {}."`
	Wait           *time.Duration `name:"wait" placeholder:"DURATION" help:"How long to wait while no machine ID is free; 0 does not wait (default for ever)."`
	Delay          *time.Duration `name:"delay" placeholder:"DURATION" help:"Wait so long before CMD is started, for a former holder of the machine ID whose lease the store has lost to end (default 0, but what that takes where the store can lose leases)."`
	Ahead          time.Duration  `name:"ahead" default:"3s" help:"How far ahead of the clock CMD may date IDs, its unit of time included. The machine ID is free this long after CMD's end; with 30s or more it stays taken until the lease's end."`
	Quiet          bool           `name:"quiet" short:"q" help:"Print errors only."`
	Command        []string       `arg:"-- CMD" optional:"" help:"After --: the command and its arguments, in which {} stands for the machine ID."`
}

// Help is the text below the usage line.
func (*runCmd) Help() string {
	return `Leases a machine ID for as long as CMD runs: kazahanad run --max 1023 -- katsubushi -worker-id={}. ` +
		`CMD also finds it in KAZAHANA_MACHINE_ID and in the variables of --env. CMD is ended (SIGTERM, then SIGKILL) before its lease ends, ` +
		`or when another process turns out to have the lease. ` +
		`The exit code is CMD's, 128+N if signal N killed it.`
}

// Run leases a machine ID, and runs the command with it.
func (c *runCmd) Run(s *system) error {
	if _, err := c.variables(0); err != nil {
		return err
	}
	path, err := s.program(c.Command, runUsage)
	if err != nil {
		return err
	}
	settings, err := loadOnly(s, append(c.args(), given("verify-interval", c.VerifyInterval)...), append([]string{"verify_interval"}, c.leaseKeys()...))
	if err != nil {
		return err
	}
	j := &job{runCmd: c, system: s, settings: settings, path: path, clock: clock.System{}, service: cmp.Or(c.Service, settings.DefaultService)}
	j.describe()
	url := settings.Provider
	options, err := c.options(j.service, settings)
	if err == nil {
		options.Services, err = withRange(url, options.Services, j.service, c.Min, c.Max)
	}
	if err != nil {
		return usageError{err}
	}
	options.LiveDir = issuer.LiveDir(settings)
	if j.provider, err = backend.OpenProvider(url, options); err != nil {
		return usageError{fmt.Errorf("provider: %w", err)}
	}
	signals, stop := child.Signals()
	defer stop()
	j.signals = signals
	err = j.run()
	if closeErr := j.provider.Close(); closeErr != nil {
		j.say("the provider could not be closed, and nothing is lost: %v", closeErr)
	}
	if err != nil && err.Error() != "" {
		err = fmt.Errorf("client %s: %w", j.client, err)
	}
	return err
}

// program finds the program of a command that stands after --, and puts a queue in front of
// stderr: a blocked one must not keep the program from being ended.
func (s *system) program(command []string, usage string) (path string, err error) {
	dashes := slices.Index(s.args, "--")
	if dashes < 0 || len(command) == 0 || len(command) != len(s.args)-dashes-1 {
		return "", usageError{errors.New(usage)}
	}
	if slices.Contains(s.env, "LISTEN_PID="+strconv.Itoa(os.Getpid())) && !slices.Contains(s.env, "LISTEN_FDS=0") {
		return "", fmt.Errorf("a socket unit of systemd started this, and %s would not get its sockets: run and lock hand on none; start the service without a .socket unit", command[0])
	}
	s.queueStderr()
	s.queue.OnDrained(s.sayDropped)
	if path, err = exec.LookPath(command[0]); err != nil {
		return "", fmt.Errorf("cannot run %s: %w", command[0], err)
	}
	return path, nil
}

// withRange limits the terms of the service to the machine IDs from low to high.
func withRange(rawURL string, own map[string]provider.Terms, service string, low, high *int64) (map[string]provider.Terms, error) {
	if low == nil && high == nil || !config.TakesTerms(rawURL) {
		return own, nil // suits refuses a machine ID beyond the limits
	}
	services, err := backend.ProviderOptions{Services: own}.TermsIn(rawURL)
	if err != nil {
		return nil, fmt.Errorf("provider: %w", err)
	}
	terms := services.Of(service)
	all := terms.Range()
	ids := all
	if low != nil {
		ids.Low = *low
	}
	if high != nil {
		ids.End = *high + 1
	}
	if ids.Low < all.Low || ids.End > all.End || ids.Low >= ids.End {
		return nil, fmt.Errorf("--min %d and --max %d: the provider has machine IDs %v, and --min must not be above --max", ids.Low, ids.End-1, all)
	}
	limited := map[string]provider.Terms{}
	maps.Copy(limited, own)
	terms.IDs = ids
	limited[service] = terms
	return limited, nil
}

// job runs CMD with a machine ID.
type job struct {
	*runCmd
	*system
	settings *config.Serve
	path     string // of CMD
	service  string
	client   string            // names this run in the log and in the lease
	meta     map[string]string // of the lease
	provider provider.Provider
	clock    clock.Source
	signals  <-chan syscall.Signal
}

// describe names this run in the log and in the lease.
func (j *job) describe() {
	j.meta = issuer.LeaseMeta(j.service, version, j.settings.Meta)
	// The client is for people. Two may begin in the same millisecond.
	j.client = fmt.Sprintf("%s-%d-%.8s", j.meta["host"], j.now().UnixMilli(), provider.NewSecret())
	maps.Copy(j.meta, map[string]string{"command": j.Command[0], "client": j.client})
	maps.Copy(j.meta, j.Meta)
}

func (j *job) say(format string, args ...any) {
	if !j.Quiet {
		j.system.say("client %s: %s", j.client, fmt.Sprintf(format, args...))
	}
}

// say prints a progress message to stderr.
func (s *system) say(format string, args ...any) {
	fmt.Fprintf(s.err, "%s kazahanad: %s\n", s.now().Format("2006/01/02 15:04:05"), fmt.Sprintf(format, args...))
}

// sayDropped reports lines that were lost because stderr was blocked.
func (s *system) sayDropped(lines uint64) {
	s.say("%d lines are missing here: stderr was blocked or failed", lines)
}

func (j *job) run() error {
	j.say("getting a machine ID from %s...", j.provider.Info().URL)
	if err := j.canExtend(); err != nil {
		return err
	}
	l, askedAt, err := j.acquire()
	if err != nil {
		return err
	}
	held := j.hold(l)
	if err := j.suits(l); err != nil {
		held.HandBack(j.ctx, j.settings.ProviderTimeout)
		return err
	}
	j.say("machine ID: %d, until %s unless extended", l.ID, snowflake.FormatMS(l.Expired))
	variables, err := j.variables(l.ID)
	if err != nil {
		return err
	}
	program := child.New(j.path, j.commandFor(l.ID), j.environmentWith(variables))
	program.Orphans = true
	defer program.Close()
	if err := j.mayExtend(held); err != nil {
		held.HandBack(j.ctx, j.settings.ProviderTimeout)
		return err
	}
	c := runner.Config{
		Clock: j.clock, Holding: held, AskedAt: askedAt, Term: held.Term, BeginMS: l.Created, Delay: j.delay(held.Term),
		Timeout: j.settings.ProviderTimeout, Program: program, Signals: j.signals, Say: j.say,
		Verify: held.Verify, VerifyEvery: j.settings.VerifyInterval,
	}
	// From here on signals go to CMD and do not end this process.
	result, err := runner.Run(context.WithoutCancel(j.ctx), c)
	held.Leave(j.ctx, j.settings.ProviderTimeout, j.Ahead, result)
	return exitOf(j.path, result, err)
}

// exitOf turns the end of a run into an exit code.
func exitOf(path string, result runner.Result, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("cannot run %s: %w", path, err)
	case result.Signal != 0:
		return exitStatus{code: 128 + int(result.Signal)}
	case result.Lost != nil && result.Exit.Status() == exitOK:
		return result.Lost // CMD ended with 0, but only because its lease was lost
	case result.Lost != nil:
		return exitStatus{code: result.Exit.Status(), error: result.Lost}
	case result.Exit.Status() != exitOK:
		return exitStatus{code: result.Exit.Status()}
	}
	return nil
}

// exitStatus is CMD's exit code, with an optional message.
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

// signalGrace is how long to wait for the signal that has ended s.ctx.
const signalGrace = time.Second

// outcome is the exit status for the signal that ended a wait, or else the wait's
// own error. s.ctx may end before its signal arrives here.
func (s *system) outcome(signal syscall.Signal, signals <-chan syscall.Signal, err error) error {
	if signal == 0 && s.ctx.Err() != nil {
		for late := time.After(signalGrace); !runner.Ends(signal); {
			select {
			case signal = <-signals:
			case <-late:
				return cmp.Or(err, s.ctx.Err())
			}
		}
	}
	if signal != 0 {
		return exitStatus{code: 128 + int(signal)}
	}
	return err
}
