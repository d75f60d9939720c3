package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

type leasesShowCmd struct {
	providerFlags
	All  bool `name:"all" help:"Show ended and released leases too."`
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
	usage, free := st.usage(all, nowMS)
	lines := []leaseLine{}
	for _, r := range wanted {
		if line := lineOf(r, nowMS); c.All || line.State == stateHeld {
			lines = append(lines, line)
		}
	}
	if !c.JSON {
		return showLeases(s.out, st.Info().URL, lines, usage, free, nowMS)
	}
	var counts map[string]int64
	err = st.within(s, func(ctx context.Context) (err error) {
		counts, err = st.Counters(ctx, st.service)
		return err
	})
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		// A credential may be allowed to list leases and not to see counters.
		fmt.Fprintf(s.err, "kazahanad: the counters are left out: %v\n", err)
	}
	return printJSON(s.out, st.report(lines, usage, free, counts))
}

// usage counts the pool's records. free says whether it is known how many machine IDs are free.
func (st *store) usage(all []provider.Record, nowMS int64) (u provider.Usage, free bool) {
	if terms, ok := st.terms(); ok {
		return provider.UsageOf(all, &terms, nowMS), true
	}
	return provider.UsageOf(all, nil, nowMS), false
}

// report is what leases --json prints. null stands for a number that the provider does not know.
func (st *store) report(lines []leaseLine, u provider.Usage, free bool, counts map[string]int64) map[string]any {
	report := map[string]any{
		"provider": st.Info().URL, "scope": st.Info().Scope, "service": st.service, "leases": lines,
		"using_ids": u.Held, "quarantined_ids": u.Quarantined(), "unusing_ids": nil, "fullness": "",
		"using_ttl_max": u.TTLMax, "using_ttl_mid": u.TTLMid, "using_ttl_min": u.TTLMin,
	}
	if free {
		report["unusing_ids"], report["fullness"] = u.Free, u.Fullness()
	}
	for _, name := range provider.CounterNames {
		report[name] = nil
	}
	for name, n := range counts {
		report[name] = n
	}
	return report
}

func showLeases(out io.Writer, url string, lines []leaseLine, u provider.Usage, free bool, nowMS int64) error {
	w := table(out)
	if len(lines) > 0 {
		fmt.Fprintln(w, "MACHINE ID\tLAYOUT\tHOST\tPID\tSERVICE\tCREATED\tENDS IN\tSTATE")
	}
	for _, l := range lines {
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
	left := "how many are free is not known here"
	if free {
		left = fmt.Sprintf("%d free", u.Free)
		if f := u.Fullness(); f.WorseThan(provider.Roomy) {
			left += "; the pool is " + strings.ReplaceAll(string(f), "_", " ")
		}
	}
	_, err := fmt.Fprintf(out, "%s: %d machine IDs in use, %d in quarantine, %s\n", url, u.Held, u.Quarantined(), left)
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
	Yes bool `name:"yes" help:"Do it, although the store holds records."`
}

// Run declares the store brand-new.
func (c *leasesInitCmd) Run(s *system) error {
	st, err := c.open(s)
	if err != nil {
		return err
	}
	defer st.Close()
	info := st.Info()
	if err := elsewhere("declare it new", "provider", info.Name); err != nil {
		return err
	}
	held, pools := true, "pool "+provider.DefaultPool
	if terms, ok := st.terms(); ok {
		pools = "pool " + terms.Pool
	}
	allPools := schemeOf(st.url) != kubeconn.Scheme
	if allPools {
		pools = "all pools"
		if err := st.within(s, st.Ready); err != nil && !errors.Is(err, provider.ErrInvalid) && st.Fenced() == nil { // Init judges the terms
			return err
		}
		held = st.Fenced() != nil
	}
	if held {
		if err := c.confirm(s, st, allPools); err != nil {
			return err
		}
	}
	// Where nothing is held back, the pools grant on the given terms from now on.
	if err := st.within(s, func(ctx context.Context) error { return st.Init(ctx, st.service) }); err != nil {
		return err
	}
	if !held {
		_, err = fmt.Fprintf(s.out, "%s: nothing is held back, and machine IDs are granted on these terms\n", info.URL)
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s is declared new for %s: machine IDs are granted from now on\n", info.URL, pools)
	return err
}

// onePerPool is a service of each pool that is known here.
func (st *store) onePerPool() (services []string) {
	terms, _ := st.options.TermsIn(st.url) // the provider has read the URL
	var seen []string
	for _, service := range append([]string{st.service, ""}, slices.Sorted(maps.Keys(terms.Named))...) {
		if pool := terms.Of(service).Pool; !slices.Contains(seen, pool) {
			seen, services = append(seen, pool), append(services, service)
		}
	}
	return services
}

// confirm asks before it declares a store new that holds records.
func (c *leasesInitCmd) confirm(s *system, st *store, allPools bool) error {
	if c.Yes {
		return nil
	}
	pools := []string{st.service}
	if allPools {
		pools = st.onePerPool()
	}
	var all []provider.Record
	for _, service := range pools {
		records, err := st.list(s, service)
		if err != nil {
			return fmt.Errorf("cannot tell whether the store holds records (--yes skips this question): %w", err)
		}
		all = append(all, records...)
	}
	if len(all) == 0 {
		return nil
	}
	nowMS := s.now().UnixMilli()
	held := 0
	for _, r := range all {
		if r.Held(nowMS) {
			held++
		}
	}
	return confirmNew(fmt.Sprintf("%s holds %d records, %d of them in use, so it does not look brand-new; if it has lost others, their machine IDs may be granted twice",
		st.Info().URL, len(all), held))
}

type leasesFenceCmd struct{ providerFlags }

// Run fences the provider's leases.
func (c *leasesFenceCmd) Run(s *system) error {
	st, err := c.open(s)
	if err != nil {
		return err
	}
	defer st.Close()
	info := st.Info()
	if err := elsewhere("fence it", "provider", info.Name); err != nil {
		return err
	}
	fenced, err := st.Fence(s.ctx)
	if fenced, err = stillFenced(info.URL, fenced, err); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s: no machine ID is granted until %s\n", info.URL, snowflake.FormatMS(fenced.UntilMS))
	return err
}

// stillFenced passes on what Fence returned. There is no fence where another operator's init came
// between: that error says so.
func stillFenced[F any](url string, fence *F, err error) (*F, error) {
	if err == nil && fence == nil {
		err = fmt.Errorf("%s: the fence has been ended already, by an init at the same time; repeat this if grants may be missing", url)
	}
	return fence, err
}

// elsewhere is the error for a provider or a store that a lease server keeps, or another process.
func elsewhere(do, what, name string) error {
	switch {
	case strings.HasPrefix(name, "http"):
		return fmt.Errorf("%s %s: %s where the lease server keeps it, with the URL that it has in the server's %s key", what, name, do, what)
	case strings.HasPrefix(name, "memory"):
		return fmt.Errorf("%s %s: it is in the memory of the process that uses it, and ends with that", what, name)
	}
	return nil
}

// confirmNew is the refusal to declare a store new that looks used; what says why it does.
func confirmNew(what string) error {
	return usageError{fmt.Errorf("init: %s; repeat with --yes to declare it new anyway", what)}
}
