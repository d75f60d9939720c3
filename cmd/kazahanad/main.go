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

	"github.com/alecthomas/kong"
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

// cli is the command line. Each subcommand has a file of its own.
type cli struct {
	Serve       serveCmd       `cmd:"" help:"Run the daemon. Works without any flag or file."`
	LeaseServer leaseServerCmd `cmd:"" name:"lease-server" help:"Run the HTTP lease server in front of a provider."`
	ID          idCmd          `cmd:"" name:"id" help:"Ask the running daemon for IDs, one a line."`
	Inspect     inspectCmd     `cmd:"" help:"Explain IDs, offline: when and by which machine ID they were made."`
	Bounds      boundsCmd      `cmd:"" help:"Smallest and largest ID of a time or an interval, for range scans in a database; offline."`
	SQL         sqlCmd         `cmd:"" name:"sql" help:"Print SQL functions that take IDs apart and give the IDs of a time, for a database."`
	Layout      layoutCmd      `cmd:"" help:"Show what a layout holds and how long it lasts; compare it with the IDs of another system."`
	Status      statusCmd      `cmd:"" help:"Show the running daemon's mode, scope, leases and counters."`
	Health      healthCmd      `cmd:"" help:"Exit 0 if the running daemon can issue IDs."`
	Leases      leasesCmd      `cmd:"" help:"Show what a provider has granted, and to whom; declare a store new."`
	Run         runCmd         `cmd:"" help:"Lease a machine ID for a program that needs one, for as long as it runs."`
	Lock        lockCmd        `cmd:"" help:"Run a program under a lock, and end the program before the lock could be lost."`
	Locks       locksCmd       `cmd:"" help:"Show the locks that are held, and by whom."`
	Seq         seqCmd         `cmd:"" name:"seq" help:"Take the next values of a sequence, one a line."`
	Placement   placementCmd   `cmd:"" help:"Show where actors live: members, kinds and activations, or one actor."`
	State       stateCmd       `cmd:"" help:"Show or mend the durable local state."`
	Completion  completionCmd  `cmd:"" help:"Print the script by which bash, zsh or fish completes command lines."`
	Manual      manualCmd      `cmd:"" hidden:"" help:"Print the manual page, for packages."`
	Doctor      doctorCmd      `cmd:"" help:"Check the installation, and say what to do."`
	Bench       benchCmd       `cmd:"" help:"Put load on the running daemon, and print IDs per second and latencies."`
	Version     versionCmd     `cmd:"" help:"Print version, commit and Go version."`
}

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
	if os.Args[0] == stepName {
		os.Exit(takeFirstStep(os.Args[1:]))
	}
	ending := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(os.Interrupt) { // as scripts have it behind &
		ending = append(ending, os.Interrupt)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ending...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	s := &system{
		ctx: ctx, out: os.Stdout, err: os.Stderr, lookup: os.LookupEnv, env: os.Environ(), uid: os.Geteuid(), now: time.Now,
		screen: term.IsTerminal(int(os.Stdout.Fd())), terminal: term.IsTerminal(int(os.Stderr.Fd())), journal: systemd.IsJournal(os.Stderr, os.LookupEnv),
	}
	os.Exit(run(s, os.Args[1:]))
}

// run runs one command line and returns the exit code.
func run(s *system, args []string) int {
	var c cli
	exit := -1
	out := &output{to: s.out}
	s.out = out
	parser, err := newParser(&c,
		kong.Writers(s.out, s.err),
		kong.Exit(func(code int) { exit = code }),
		kong.Bind(s),
	)
	if err != nil {
		panic(err) // the definition of cli is wrong
	}
	switch {
	case s.completes(parser):
		return exitOK
	case len(args) == 0:
		return s.fail(usageError{errors.New("a subcommand is missing: kazahanad serve runs the daemon, kazahanad --help lists all")})
	case len(args) == 1 && args[0] == "--version":
		args = []string{"version"}
	case args[0] == "help":
		args = append(slices.Clone(args[1:]), "--help")
	}
	s.args = args
	defer s.flush()
	k, err := parser.Parse(args)
	switch {
	case exit >= 0 || out.err != nil: // --help has been printed
		err = nil
	case err != nil:
		if daemons[args[0]] != "" {
			s.queueStderr() // which may take nothing
		}
		err = usageError{withHint(withoutSecrets(err), args)}
	default:
		err = k.Run(s)
	}
	if err = out.judge(s.unlessInterrupted(err)); err == nil {
		return exitOK
	}
	code := s.fail(err)
	if args[0] == "serve" && out.err == nil {
		s.answerUnstarted(code, err)
	}
	return code
}

// newParser is kong's parser of the command line.
func newParser(c *cli, more ...kong.Option) (*kong.Kong, error) {
	return kong.New(c, append(append(config.Options(), more...),
		kong.Name("kazahanad"),
		kong.Description("64-bit, time-sortable, unique IDs on a Unix socket, from leased machine IDs."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}))...)
}

// withoutSecrets hides the passwords of an error that repeats an argument: a URL whose flag was
// forgotten.
func withoutSecrets(err error) error {
	text, argument, found := strings.Cut(err.Error(), unexpectedArgument+" ")
	if !found {
		return err
	}
	if _, _, isURL := strings.Cut(argument, ":"); isURL || strings.ContainsAny(argument, "=@?") {
		return errors.New(text + unexpectedArgument + ", which is not shown since it may hold a password: a URL follows its flag, for example --provider")
	}
	return err
}

// unlessInterrupted returns the error of a command, or the status of one that a signal
// ended: the person who sent it needs no words.
func (s *system) unlessInterrupted(err error) error {
	if errors.Is(err, context.Canceled) && s.ctx.Err() != nil && !errors.As(err, new(exitStatus)) {
		if strings.HasPrefix(context.Cause(s.ctx).Error(), syscall.SIGTERM.String()) { // as signal.NotifyContext says it
			return exitStatus{code: exitTerminated}
		}
		return exitStatus{code: exitInterrupted}
	}
	return err
}

// unexpectedArgument is how kong's error about one begins.
const unexpectedArgument = "unexpected argument"

// withHint adds a hint to the error of a user who expects the command to start the
// daemon.
func withHint(err error, args []string) error {
	if strings.HasPrefix(args[0], "-") {
		return fmt.Errorf("%w (flags come after a subcommand: did you mean kazahanad serve %s?)", err, args[0])
	}
	if args[0] == "run" && (!slices.Contains(args, "--") || strings.Contains(err.Error(), unexpectedArgument)) {
		return fmt.Errorf("%w (run leases a machine ID for a command: kazahanad run -- CMD {}; the daemon is started with: kazahanad serve)", err)
	}
	if args[0] == "lock" && strings.Contains(err.Error(), unexpectedArgument) {
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
