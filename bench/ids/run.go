//go:build linux

package ids

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/load"
)

// bench is a run.
type bench struct {
	plan     plan
	launch   process.Launcher
	dir      string // for everything that any process writes
	progress io.Writer

	main       *daemon // measured beside the references
	servers    []*server
	absent     map[string]string // servers that there are not, and why
	unmeasured map[string]string // rows that could not be measured, and why
	fewFiles   error             // why many connections cannot be held, or nil
	others     others

	round   int
	samples report.Samples
	remarks []string
}

// maxSocketPath is what a Unix socket's address holds.
const maxSocketPath = 107

// run carries the plan out and prints the tables. Whatever happens, it leaves
// no process and no file behind.
func run(ctx context.Context, p plan, out, progress io.Writer) (err error) {
	machine := describeMachine()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := p.Begin()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if longest := filepath.Join(dir, kazahanad+"4294967295", "memcached.sock"); len(longest) > maxSocketPath {
		return fmt.Errorf("%s is too long for the path of a socket: set TMPDIR to a shorter one", longest)
	}
	b := &bench{
		plan: p, launch: process.Launcher{Core: p.Core, Self: self}, dir: dir, progress: progress,
		absent: map[string]string{}, unmeasured: map[string]string{},
		// Before any server is started: they inherit it.
		fewFiles: process.AllowOpenFiles(heldConnections + openFilesBeside),
	}
	defer func() {
		for _, s := range b.servers {
			if s.service != nil {
				s.service.Stop()
			}
		}
	}()
	if err := b.startServers(ctx); err != nil {
		return interrupted(ctx, err)
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	if err := b.describeServers(ctx); err != nil {
		return interrupted(ctx, err)
	}
	return b.report(out, machine)
}

// measure goes through the rounds.
func (b *bench) measure(ctx context.Context) error {
	expected := b.plan.expected(len(b.servers))
	fmt.Fprintf(b.progress, "bench: %d rounds, about %v\n", b.plan.Rounds, expected.Round(time.Second))
	ctx, cancel := context.WithTimeoutCause(ctx, 2*expected+2*time.Minute, errors.New("the run took far longer than planned"))
	defer cancel()
	for b.round = range b.plan.Rounds {
		fmt.Fprintf(b.progress, "bench: round %d of %d:", b.round+1, b.plan.Rounds)
		for _, r := range b.plan.rows {
			if r.measure == nil {
				continue
			}
			fmt.Fprintf(b.progress, " %s", r.key)
			if err := r.measure(ctx, b); err != nil {
				fmt.Fprintln(b.progress)
				return interrupted(ctx, fmt.Errorf("row %s: %w", r.key, err))
			}
		}
		fmt.Fprintln(b.progress)
	}
	for _, r := range b.plan.rows {
		if r.finish == nil {
			continue
		}
		if err := r.finish(ctx, b); err != nil {
			return interrupted(ctx, fmt.Errorf("row %s: %w", r.key, err))
		}
	}
	return nil
}

// interrupted prefers the reason why everything had to end.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// add notes what this round measured.
func (b *bench) add(row, subject, quantity string, value float64) {
	b.samples.Add(b.round, report.Series{Row: row, Subject: subject, Quantity: quantity}, value)
}

// load measures a server for the plan's duration, unless the options say
// otherwise.
func (b *bench) load(ctx context.Context, s *server, o load.Options) (result loadResult, err error) {
	if o.Duration == 0 {
		o.Duration = b.plan.Duration
	}
	if o.Warmup == 0 {
		o.Warmup = warmup
	}
	if err := b.launch.Ask(ctx, o.Warmup+o.Duration+patience, &result, arguments("load", loadOptions{o, s.service.PID()})...); err != nil {
		return result, fmt.Errorf("%s: %w", s.name, errors.Join(err, s.service.Failure()))
	}
	return result, nil
}

// describeServers tells what was measured, and refuses a run in which the
// daemon had no leases for some time.
func (b *bench) describeServers(ctx context.Context) error {
	st, err := b.main.status(ctx)
	if err != nil {
		return err
	}
	if err := st.mustBeRegular(); err != nil {
		return err
	}
	b.remarks = append(b.remarks, fmt.Sprintf("kazahanad %s, SQLite provider with %s, max_throughput_per_ms %d, else as shipped",
		st.Version, wideLayout, throughput))
	for _, s := range st.Services {
		// A few are normal: a quiet service begins its milliseconds late.
		if s.Exhaustions*100 > st.UptimeMS {
			b.remarks = append(b.remarks, fmt.Sprintf("the leases were used up in %d of the run's %d milliseconds: "+
				"they limit the rows with batches", s.Exhaustions, st.UptimeMS))
		}
	}
	if remark := b.others.remark(); remark != "" && b.plan.Core >= 0 {
		b.remarks = append(b.remarks, remark)
	}
	for _, s := range b.servers {
		if s.note != "" {
			b.remarks = append(b.remarks, s.note)
		}
	}
	for _, r := range references {
		if why := b.absent[r.name]; why != "" {
			b.remarks = append(b.remarks, r.name+": not measured: "+why)
		}
	}
	return nil
}
