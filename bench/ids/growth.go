//go:build linux

package ids

import (
	"context"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/load"
)

const growthKey = "growth"

// growthActive are the numbers of connections that ask, alone and beside many
// that do not.
var growthActive = []int{1, 64}

// growthThroughputs are the IDs per millisecond that daemons have leases for.
var growthThroughputs = []int{leaseIDs, 4 * leaseIDs, 16 * leaseIDs, 64 * leaseIDs}

// growthCount is how many IDs are asked for at once to use leases up.
const growthCount = 1000

// growthConnections is how many connections ask: enough that there is always
// work for a millisecond or two, and not for much longer, because what is under
// way at the end does not count.
func growthConnections(throughput int) int { return max(4, 2*throughput/growthCount) }

// Quantities of the row.

func quantityAlone(active int) string     { return fmt.Sprintf("rate of %d alone", active) }
func quantityAmong(active int) string     { return fmt.Sprintf("rate of %d among idle", active) }
func quantityOfLeases(leases int) string  { return fmt.Sprintf("of %d leases", leases) }
func quantityCoreShare(leases int) string { return fmt.Sprintf("core, %d leases", leases) }
func quantityNearer(leases int) string    { return fmt.Sprintf("of the nearer limit, %d leases", leases) }
func leasesTitle(throughput int) string {
	return plural(throughput/leaseIDs, "lease") + fmt.Sprintf(", NextIDs(%d)", growthCount)
}
func connectionsTitle(active int) string { return "NextID, " + plural(active, "connection") }

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func growthRow() row {
	r := row{
		key: growthKey, help: "the rate beside 10,000 open idle connections, and IDs per millisecond by the number of leases",
		takes: func(p plan, _ int) time.Duration {
			const holding = time.Second
			loads := 2*len(growthActive) + len(growthThroughputs)
			return time.Duration(loads)*loadTime(p.Duration) + time.Duration(1+len(growthThroughputs))*daemonTime + holding
		},
		measure: measureGrowth,
		note: fmt.Sprintf("a daemon of its own, without further connections and then beside %d that made one NextID each and are idle; "+
			"then daemons with max_throughput_per_ms %v, each asked for NextIDs(%d) by enough connections for a millisecond or two; the core's share is the CPU time of "+
			"daemon and load generator; the nearer limit is whichever of the two has the greater share, leases or core",
			heldConnections, growthThroughputs, growthCount),
	}
	for _, active := range growthActive {
		title := "growth: " + connectionsTitle(active)
		r.shows(title, quantityAlone(active), "1000 requests/s", report.Kilo)
		r.shows(title, quantityAmong(active), "the same beside 10,000", report.Kilo)
		r.ratio(title, "rate beside 10,000 idle / alone", quantityAmong(active), quantityAlone(active), 0.95, false)
	}
	for _, throughput := range growthThroughputs {
		title, leases := "growth: "+leasesTitle(throughput), throughput/leaseIDs
		r.shows(title, quantityOfLeases(leases), "IDs given of the leases'", report.Percent)
		r.shows(title, quantityCoreShare(leases), "share of the core", report.Percent)
		r.promise(title, "of leases or core, the nearer limit", quantityNearer(leases), report.Series{}, 0.95, false, report.Percent)
	}
	return r
}

func measureGrowth(ctx context.Context, b *bench) error {
	err := b.withDaemon(ctx, daemonOptions{name: "growth", throughput: throughput, provider: wideLayout}, func(d *daemon) error {
		if err := b.measureActive(ctx, d, quantityAlone); err != nil {
			return err
		}
		return b.holding(ctx, growthKey, d, func() error { return b.measureActive(ctx, d, quantityAmong) })
	})
	if err != nil {
		return err
	}
	for _, throughput := range growthThroughputs {
		err := b.withDaemon(ctx, daemonOptions{name: "leases", throughput: throughput}, func(d *daemon) error {
			return b.measureThroughput(ctx, d, throughput)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) measureActive(ctx context.Context, d *daemon, quantity func(int) string) error {
	for _, active := range growthActive {
		result, err := b.loadDaemon(ctx, d, load.Options{Count: 1, Connections: active})
		if err != nil {
			return err
		}
		b.others.note(result)
		b.add(growthKey, kazahanad, quantity(active), result.Rate())
	}
	return nil
}

func (b *bench) measureThroughput(ctx context.Context, d *daemon, throughput int) error {
	result, err := b.loadDaemon(ctx, d, load.Options{Count: growthCount, Connections: growthConnections(throughput)})
	if err != nil {
		return err
	}
	leases := throughput / leaseIDs
	ofLeases := result.Rate() * growthCount / 1000 / float64(throughput)
	ofCore := (result.Server + result.CPU).Seconds() / result.Elapsed.Seconds()
	b.add(growthKey, kazahanad, quantityOfLeases(leases), ofLeases)
	b.add(growthKey, kazahanad, quantityCoreShare(leases), ofCore)
	b.add(growthKey, kazahanad, quantityNearer(leases), max(ofLeases, ofCore))
	return nil
}
