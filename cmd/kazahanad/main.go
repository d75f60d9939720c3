// Command kazahanad issues 64-bit, time-sortable, unique IDs on a Unix socket.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/term"

	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/logqueue"
	"github.com/kazahana/kazahana/internal/operator/systemd"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	// exitState is for a state directory that this version cannot use. A restart
	// would not help, and the units do not try one.
	exitState = 3
)

// usageError is a mistake in the command line or the configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// system is the process as the subcommands see it; tests replace it.
type system struct {
	ctx    context.Context // done at SIGINT, unless it is ignored, and SIGTERM
	out    io.Writer
	err    io.Writer
	lookup func(string) (string, bool)
	env    []string
	uid    int
	now    func() time.Time
	args   []string // the command line as it was typed

	screen            bool             // stdout is a terminal
	terminal, journal bool             // what stderr is
	queue             *logqueue.Queue  // between err and stderr; nil: err writes at once
	level             zap.AtomicLevel  // of the log, once there is one
	format            config.LogFormat // the same

	socket *unixsock.Listener // of serve, from the service manager; nil: none
}

func main() {
	ending := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(os.Interrupt) { // as scripts have it behind &
		ending = append(ending, os.Interrupt)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ending...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	s := &system{
		ctx: ctx, out: os.Stdout, err: os.Stderr, lookup: os.LookupEnv, env: os.Environ(), uid: os.Geteuid(), now: time.Now,
		screen: term.IsTerminal(int(os.Stdout.Fd())), terminal: term.IsTerminal(int(os.Stderr.Fd())), journal: systemd.LeadsToJournal(),
	}
	os.Exit(run(s, os.Args[1:]))
}

// run runs one command line and returns the exit code.
func run(s *system, args []string) int {
	if len(args) == 1 && args[0] == "--version" {
		args = []string{"version"}
	}
	out := &output{to: s.out}
	s.out, s.args = out, args
	defer s.flush()
	root := s.commandLine()
	root.SetArgs(args)
	err := out.judge(s.unlessInterrupted(root.Execute()))
	if err == nil {
		return exitOK
	}
	code := s.fail(err)
	if len(args) > 0 && args[0] == "serve" && out.err == nil {
		s.answerUnstarted(code, err)
	}
	return code
}

// unlessInterrupted returns the error of a command, or the status of a command that a signal
// ended: the sender needs no words.
func (s *system) unlessInterrupted(err error) error {
	if errors.Is(err, context.Canceled) && s.ctx.Err() != nil && !errors.As(err, new(exitStatus)) {
		if strings.HasPrefix(context.Cause(s.ctx).Error(), syscall.SIGTERM.String()) { // as signal.NotifyContext says it
			return exitStatus{code: exitTerminated}
		}
		return exitStatus{code: exitInterrupted}
	}
	return err
}

// withHint adds a hint to the error of a user who expects the command to start the
// daemon.
func withHint(err error, args []string) error {
	if len(args) == 0 {
		return err
	}
	if args[0] == "run" && (!slices.Contains(args, "--") || strings.Contains(err.Error(), config.UnexpectedArgument)) {
		return fmt.Errorf("%w (run leases a machine ID for a command: kazahanad run -- CMD {}; the daemon is started with: kazahanad serve)", err)
	}
	if args[0] == "lock" && strings.Contains(err.Error(), config.UnexpectedArgument) {
		return fmt.Errorf("%w (%s)", err, lockUsage)
	}
	return err
}

// exitCode is the exit code that belongs to an error.
func exitCode(err error) int {
	var usage usageError
	var settings *issuer.SettingsError
	var status exitStatus
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return status.code
	case errors.As(err, &usage), errors.As(err, &settings):
		return exitUsage
	}
	return exitFailure
}

// fail prints the error as one line, in the format of the log where there is one, and
// returns its exit code.
func (s *system) fail(err error) int {
	code, text := exitCode(err), strings.ReplaceAll(err.Error(), "\n", "; ")
	priority := ""
	switch {
	case text == "":
		return code
	case s.logsJSON():
		s.logFatal(text, code)
		return code
	case s.journal:
		priority = systemd.Priority(zap.ErrorLevel)
	}
	fmt.Fprintf(s.err, "%skazahanad: error: %s\n", priority, text)
	return code
}
