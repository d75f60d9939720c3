package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/kazahana/kazahana/internal/didyoumean"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/manual"
)

// subcommand is a struct; its tags are its flags and arguments (see package config). It can
// have a method Help, the text below the usage line.
type subcommand interface{ Run(s *system) error }

// commandLine is the tree of all commands. Each subcommand has a file of its own.
func (s *system) commandLine() *cobra.Command {
	pages := s.command("manual", "Print the manual page, for packages.", &manualCmd{})
	pages.Hidden = true
	leases := s.command("leases", "Show what a provider has granted, and to whom; declare a store new.", &leasesShowCmd{})
	leases.AddCommand(
		s.command("init", "Declare that a provider's store is brand-new or complete: no process holds a lease that it does not know. Ends a fence.", &leasesInitCmd{}),
		s.command("fence", "Hold back grants as after a loss: for restores of an older state that the store cannot notice.", &leasesFenceCmd{}),
	)
	root := s.group("kazahanad", "64-bit, time-sortable, unique IDs on a Unix socket, from leased machine IDs.",
		s.command("serve", "Run the daemon. Works without any flag or file.", &serveCmd{}),
		s.command("lease-server", "Run the HTTP lease server in front of a provider.", &leaseServerCmd{}),
		s.command("id", "Ask the running daemon for IDs, one a line.", &idCmd{}),
		s.command("inspect", "Explain IDs, offline: when and by which machine ID they were made.", &inspectCmd{}),
		s.command("bounds", "Smallest and largest ID of a time or an interval, for range scans in a database; offline.", &boundsCmd{}),
		s.command("sql", "Print SQL functions that take IDs apart and give the IDs of a time, for a database.", &sqlCmd{}),
		s.command("layout", "Show what a layout holds and how long it lasts; compare it with the IDs of another system.", &layoutCmd{}),
		s.command("status", "Show the running daemon's mode, scope, leases and counters.", &statusCmd{}),
		s.command("health", "Exit 0 if the running daemon can issue IDs.", &healthCmd{}),
		leases,
		s.group("store", "Declare the store of locks and sequences new, or hold back what it grants.",
			s.command("init", "Declare that the store is brand-new or complete: there is no lock, and no value of a sequence, that it does not know. Ends a fence.", &storeInitCmd{}),
			s.command("fence", "Hold back locks and sequences as after a loss: for restores of an older state that the store cannot notice.", &storeFenceCmd{}),
		),
		s.command("backup", "Copy the SQLite files of leases, locks and sequences, also while they are in use.", &backupCmd{}),
		s.command("run", "Lease a machine ID for a program that needs one, for as long as it runs.", &runCmd{}),
		s.command("lock", "Run a program under a lock, and end the program before the lock could be lost.", &lockCmd{}),
		s.command("locks", "Show the locks that are held, and by whom.", &locksCmd{}),
		s.command("seq", "Take the next values of a sequence, one a line.", &seqCmd{}),
		s.command("placement", "Show where actors live: members, kinds and activations, or one actor.", &placementCmd{}),
		s.group("state", "Show or mend the durable local state.",
			s.command("show", "Show the durable state, also while the daemon runs.", &stateShowCmd{}),
			s.command("accept-epoch", "Let a service go on with the epoch of a lease that was refused (daemon stopped).", &stateAcceptCmd{}),
			s.command("reset-floor", "Drop all leases, then set the mark to now (daemon stopped).", &stateResetCmd{}),
		),
		s.command("completion", "Print the script by which bash, zsh or fish completes command lines.", &completionCmd{}),
		pages,
		s.command("doctor", "Check the installation, and say what to do.", &doctorCmd{}),
		s.command("bench", "Put load on the running daemon, and print IDs per second and latencies.", &benchCmd{}),
		s.command("version", "Print version, commit and Go version.", &versionCmd{}),
	)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { manual.Help(s.out, c, s.width()) })
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return s.wrong(config.FlagError(err, c.Flags())) })
	return root
}

func init() { cobra.EnableCommandSorting = false }

// command is a command that runs c.
func (s *system) command(name, short string, c subcommand) *cobra.Command {
	arguments := config.ArgumentsOf(c)
	long := arguments.Help()
	if helped, is := c.(interface{ Help() string }); is {
		long = strings.TrimSpace(helped.Help() + "\n\n" + long)
	}
	command := &cobra.Command{
		Use: strings.TrimSpace(name + " " + arguments.Usage()), Short: short, Long: long, ValidArgs: arguments.Words(),
		Args: func(_ *cobra.Command, texts []string) error { return s.wrong(arguments.Set(texts)) },
		RunE: func(*cobra.Command, []string) error { return c.Run(s) },
	}
	config.Bind(command.Flags(), c)
	command.Flags().VisitAll(func(f *pflag.Flag) {
		if words := f.Annotations[config.WordsOf]; words != nil {
			if err := command.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
				panic(err) // the flag is there
			}
		}
	})
	return command
}

// group is a command that only holds others. It lets unknown flags pass, so that a misspelt
// subcommand is named before the flags that would have been its own.
func (s *system) group(name, short string, children ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{
		Use: name + " COMMAND", Short: short, Args: cobra.ArbitraryArgs, FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(c *cobra.Command, texts []string) error { return s.wrong(noSuchCommand(c, texts)) },
	}
	group.AddCommand(children...)
	return group
}

// noSuchCommand is the error for a command line that names no command of a group.
func noSuchCommand(group *cobra.Command, texts []string) error {
	switch {
	case len(texts) > 0:
		err := config.Unexpected(texts[0])
		if near := didyoumean.Name(texts[0], names(group)); near != "" {
			err = fmt.Errorf("%w, did you mean %s?", err, near)
		}
		return err
	case group.HasParent():
		return fmt.Errorf("a subcommand is missing: %s", strings.Join(names(group), ", "))
	}
	return errors.New("a subcommand is missing: kazahanad serve runs the daemon, kazahanad --help lists all")
}

func names(group *cobra.Command) (all []string) {
	for _, child := range group.Commands() {
		if child.IsAvailableCommand() {
			all = append(all, child.Name())
		}
	}
	return all
}

// wrong makes a usage error of a fault of the command line.
func (s *system) wrong(err error) error {
	if err == nil {
		return nil
	}
	if len(s.args) > 0 && daemons[s.args[0]] != "" {
		s.queueStderr() // which may take nothing
	}
	return usageError{withHint(err, s.args)}
}

// widest is the longest line of a help text.
const widest = 100

// width returns the width of help texts.
func (s *system) width() int {
	if columns, _, err := term.GetSize(int(os.Stdout.Fd())); s.screen && err == nil && columns > 0 {
		return min(columns, widest)
	}
	return widest
}
