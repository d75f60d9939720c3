package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"golang.org/x/term"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

type leasesCmd struct {
	Show   leasesShowCmd   `cmd:"" default:"withargs" help:"Show what a provider has granted, and to whom (the default)."`
	Init   leasesInitCmd   `cmd:"" help:"Declare that a provider's store is brand-new or complete: no process holds a lease that it does not know. Ends a fence."`
	Fence  leasesFenceCmd  `cmd:"" help:"Hold back grants from the SQLite files as after a loss: for restores of an older state that they cannot notice."`
	Backup leasesBackupCmd `cmd:"" help:"Write a consistent copy of the provider's SQLite file, which may be in use."`

	Conformance leasesConformanceCmd `cmd:"" help:"Check whether daemons can rely on a lease server of another make."`
}

type leasesShowCmd struct {
	providerFlags
	All  bool `help:"Show ended and released leases too."`
	JSON bool `name:"json" help:"Print JSON, with counters."`
}

// Run lists the records of the service's pool.
func (c *leasesShowCmd) Run(s *system) error {
	st, err := c.open(s)
	if err != nil {
		return err
	}
	defer st.Close()
	all, wanted, err := st.records(s)
	if err != nil {
		return err
	}
	nowMS := s.now().UnixMilli()
	info := st.Info()
	report := leasesReport{Provider: info.URL, Scope: string(info.Scope), Service: st.service, Leases: []leaseLine{}}
	if terms, ok := st.terms(); ok {
		report.addUsage(provider.UsageOf(all, &terms, nowMS), true)
	} else {
		report.addUsage(provider.UsageOf(all, nil, nowMS), false)
	}
	for _, r := range wanted {
		if line := lineOf(r, nowMS); c.All || line.State == stateHeld {
			report.Leases = append(report.Leases, line)
		}
	}
	if !c.JSON {
		return showLeases(s.out, report, nowMS)
	}
	counts, err := within(s, st, func(ctx context.Context) (map[string]int64, error) { return st.Counters(ctx, st.service) })
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		// A credential may be allowed to list leases and not to see counters.
		fmt.Fprintf(s.err, "kazahanad: the counters are left out: %v\n", err)
	}
	report.addCounts(counts)
	return printJSON(s.out, report)
}

func showLeases(out io.Writer, report leasesReport, nowMS int64) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(report.Leases) > 0 {
		fmt.Fprintln(w, "MACHINE ID\tLAYOUT\tHOST\tPID\tSERVICE\tCREATED\tENDS IN\tSTATE")
	}
	for _, l := range report.Leases {
		endsIn, state := "-", l.State
		if l.State == stateHeld {
			endsIn = seconds(l.EndsInMS).String()
		} else if nowMS < l.FreeAtMS {
			state += ", free in " + seconds(l.FreeAtMS-nowMS).String()
		}
		fmt.Fprintf(w, "%d\t%d/%d/%d\t%s\t%s\t%s\t%s\t%s\t%s\n", l.MachineID, l.BitTS, l.BitID, l.BitSeq,
			printable(l.Host), printable(l.PID), printable(l.Service), snowflake.FormatMS(l.CreatedMS), endsIn, state)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	free := "how many are free is not known here"
	if report.UnusingIDs != nil {
		free = fmt.Sprintf("%d free", *report.UnusingIDs)
	}
	if f := provider.Fullness(report.Fullness); f.WorseThan(provider.Roomy) {
		free += "; the pool is " + strings.ReplaceAll(report.Fullness, "_", " ")
	}
	_, err := fmt.Fprintf(out, "%s: %d machine IDs in use, %d in quarantine, %s\n", report.Provider, report.UsingIDs, report.QuarantinedIDs, free)
	return err
}

// printable makes a holder's own text fit for a terminal and a table column.
func printable(text string) string {
	if text == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

type leasesInitCmd struct {
	providerFlags
	Yes bool `help:"Do not ask, although the store holds records."`
}

// Run declares the store brand-new.
func (c *leasesInitCmd) Run(s *system) error {
	st, err := c.open(s)
	if err != nil {
		return err
	}
	defer st.Close()
	info := st.Info()
	unneeded := fmt.Errorf("provider %s: it needs no declaration: its store does not forget what was granted", info.Name)
	if strings.HasPrefix(info.Name, "http") {
		unneeded = fmt.Errorf("provider %s: declare the store behind the lease server, with the URL that it has in the server's provider key", info.Name)
	}
	if !info.Can.Init {
		return unneeded
	}
	beside, err := c.storeOf(st)
	if err != nil {
		return err
	}
	if beside != nil {
		defer beside.Close()
	}
	if lacksNothing(s, st, beside) {
		_, err := fmt.Fprintf(s.out, "%s: nothing is held back, so there is nothing to declare\n", info.URL)
		return err
	}
	if err := c.confirm(s, st); err != nil {
		return err
	}
	_, err = within(s, st, func(ctx context.Context) (struct{}, error) { return struct{}{}, st.Init(ctx, st.service) })
	if errors.Is(err, errors.ErrUnsupported) {
		return unneeded
	}
	if err != nil {
		return err
	}
	if err := initStore(s, st, beside); err != nil {
		return fmt.Errorf("machine IDs are granted from now on, but locks and sequences could not be declared new: %w", err)
	}
	pool := "pool " + provider.DefaultPool
	if terms, ok := st.terms(); ok {
		pool = "pool " + terms.Pool
	}
	if info.Can.Fence {
		pool = "all pools"
	}
	_, err = fmt.Fprintf(s.out, "%s is declared new for %s: machine IDs, locks and sequences are granted from now on\n", info.URL, pool)
	return err
}

// initStore declares the store of locks and sequences new, if there is one.
func initStore(s *system, st *store, beside *backend.Store) error {
	if beside == nil {
		return nil
	}
	_, err := within(s, st, func(ctx context.Context) (struct{}, error) { return struct{}{}, beside.Init(ctx) })
	return err
}

// confirm asks before it declares a store new that holds records.
func (c *leasesInitCmd) confirm(s *system, st *store) error {
	if c.Yes {
		return nil
	}
	all, _, err := st.records(s)
	if err != nil {
		return fmt.Errorf("cannot tell whether the store holds records (--yes skips this question): %w", err)
	}
	if len(all) == 0 {
		return nil
	}
	nowMS := s.now().UnixMilli()
	held := len(slices.DeleteFunc(slices.Clone(all), func(r provider.Record) bool { return stateOf(r, nowMS) != stateHeld }))
	what := fmt.Sprintf("%s holds %d records, %d of them in use, so it does not look brand-new; if it has lost others, their machine IDs may be granted twice",
		st.Info().URL, len(all), held)
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return usageError{fmt.Errorf("init: %s; repeat with --yes to declare it new anyway", what)}
	}
	fmt.Fprintf(s.err, "%s. Declare it new? Type yes: ", what)
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "yes" {
		return errors.New("init: nothing was declared")
	}
	return nil
}
