//go:build linux

package ids

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/load"
)

const quietKey = "quiet"

// Quantities of the row, in nanoseconds.
const (
	quantityCalm         = "p99.9 calm"
	quantityDisturbed    = "p99.9 disturbed"
	quantityCalmP50      = "p50 calm"
	quantityDisturbedP50 = "p50 disturbed"
)

const (
	// quietThroughput is enough that NextID on one connection never waits for
	// the next millisecond.
	quietThroughput = 16 * leaseIDs
	// shortTerm has the leases renewed once in a second, after 90% of it.
	shortTerm = 1100 * time.Millisecond
	// quietWarmup is longer than elsewhere: what is looked for is rare.
	quietWarmup = 300 * time.Millisecond
)

func quietRow() row {
	r := row{
		key: quietKey, help: "p99.9 while leases are renewed, metrics are scraped and the provider hangs, beside the same undisturbed",
		takes:   func(p plan, _ int) time.Duration { return 2 * (daemonTime + quietWarmup + loadTime(p.Duration)) },
		measure: measureQuiet,
		finish: func(_ context.Context, b *bench) error {
			b.remarks = append(b.remarks, fmt.Sprintf("quiet: while it was disturbed, leases were renewed %.0f times, and %d of %d IDs were fallback IDs",
				b.quiet.renewals, b.quiet.fallback, b.quiet.fallback+b.quiet.regular))
			return nil
		},
		note: fmt.Sprintf("two daemons of the row's own, one after the other, in turns which is first; disturbed: a lease term of %v, so that one renewal comes each second, "+
			"/metrics %d times a second, and the provider's file locked for %v, free for %v, and so on (IDs made when a lease ran out in this time are "+
			"fallback IDs, as they should be); who scrapes and locks runs on another core, if there is one",
			shortTerm, int(time.Second/scrapePause), lockTime, lockPause),
	}
	const title = "quiet: NextID, 1 connection"
	r.shows(title, quantityCalm, "p99.9 calm, µs", report.Microseconds)
	r.shows(title, quantityDisturbed, "p99.9 disturbed, µs", report.Microseconds)
	r.shows(title, quantityCalmP50, "p50 calm, µs", report.Microseconds)
	r.shows(title, quantityDisturbedP50, "p50 disturbed, µs", report.Microseconds)
	r.ratio(title, "p99.9 disturbed / calm", quantityDisturbed, quantityCalm, 1.2, true)
	return r
}

// quietFacts tell whether what should disturb has happened.
type quietFacts struct {
	renewals          float64
	regular, fallback uint64
}

func measureQuiet(ctx context.Context, b *bench) error {
	calm := func() error {
		return b.withDaemon(ctx, daemonOptions{name: "calm", throughput: quietThroughput}, func(d *daemon) error {
			return b.quietLoad(ctx, d, quantityCalm, quantityCalmP50)
		})
	}
	disturbed := func() error { return b.measureDisturbed(ctx) }
	// What comes second should not always be the same.
	steps := []func() error{calm, disturbed}
	if b.round%2 == 1 {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) quietLoad(ctx context.Context, d *daemon, p999, p50 string) error {
	result, err := b.loadDaemon(ctx, d, load.Options{Count: 1, Connections: 1, Warmup: quietWarmup})
	if err != nil {
		return err
	}
	b.others.note(result)
	b.add(quietKey, kazahanad, p999, float64(result.P999))
	b.add(quietKey, kazahanad, p50, float64(result.P50))
	return nil
}

func (b *bench) measureDisturbed(ctx context.Context) error {
	d, err := b.startDaemon(ctx, daemonOptions{
		name: "disturbed", throughput: quietThroughput, provider: fmt.Sprintf("term=%v&quarantine=%v", shortTerm, shortTerm),
		admin: true,
	})
	if d != nil {
		defer d.Stop()
	}
	if err != nil {
		return err
	}
	disturber, err := b.launch.Beside().Launch(filepath.Join(b.dir, "disturb.log"), b.launch.Self,
		arguments("disturb", disturbOptions{d.admin, d.leases})...)
	if err != nil {
		return err
	}
	defer disturber.Stop()
	err = disturber.Await(ctx, startLimit, func(context.Context) error {
		if !disturber.Said(disturbing + "\n") {
			return fmt.Errorf("metrics were not read, or the provider's file was not locked")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("disturb: %w", err)
	}
	if err := b.quietLoad(ctx, d, quantityDisturbed, quantityDisturbedP50); err != nil {
		return err
	}
	if err := disturber.Failure(); err != nil {
		return fmt.Errorf("disturb: %w", err)
	}
	return b.noteDisturbed(ctx, d)
}

func (b *bench) noteDisturbed(ctx context.Context, d *daemon) error {
	st, err := d.status(ctx)
	if err != nil {
		return err
	}
	metrics, err := readMetrics(metricsClient(d.admin))
	if err != nil {
		return err
	}
	const first = 1 // is no renewal
	b.quiet.renewals += sumMetric(metrics, "kazahana_lease_acquires_total", `result="ok"`) - first
	b.quiet.fallback += st.fallbackIDs()
	for _, s := range st.Services {
		b.quiet.regular += s.Issued.Regular
	}
	return nil
}

// sumMetric adds up a metric's values over the lines that have the label.
func sumMetric(metrics, name, label string) (sum float64) {
	for line := range strings.Lines(metrics) {
		text, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(text, name+"{") || !strings.Contains(text, label) {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			sum += v
		}
	}
	return sum
}
