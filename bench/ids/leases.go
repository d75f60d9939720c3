//go:build linux

package ids

import (
	"context"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/load"
)

const leasesKey = "leases"

var leasesWork = fmt.Sprintf("leases as the limit: %d IDs/ms", leaseIDs)

// The work of the row: several that wait for the same lease at once.
const (
	leasesConnections = 8
	leasesCount       = 64
)

// Quantities of the row: all are shares.
const (
	quantityOfLease = "of the lease"
	quantityBusyCPU = "CPU, busy"
	quantityIdleCPU = "CPU, idle"
)

func leasesRow() row {
	r := row{
		key: leasesKey, help: "one lease, more asked than it gives: how much of it is given out, and at what CPU time",
		takes:   func(p plan, _ int) time.Duration { return daemonTime + loadTime(p.Duration) + idleTime(p) },
		measure: measureLeases,
		note: fmt.Sprintf("a daemon of its own with max_throughput_per_ms %d; %d connections ask for NextIDs(%d) each, again and again; "+
			"the CPU time is that of the daemon's process, by its own clock in the kernel, while that is counted, and while no connection is open",
			leaseIDs, leasesConnections, leasesCount),
	}
	r.shows(leasesWork, quantityOfLease, "IDs given of the lease's", report.Percent).atLeast(0.99)
	r.shows(leasesWork, quantityBusyCPU, "daemon's share of a core", report.Percent).atMost(0.30)
	r.shows(leasesWork, quantityIdleCPU, "the same, idle", report.FinePercent).atMost(0.01)
	return r
}

// daemonTime is about what a daemon of a row's own takes to start and stop.
const daemonTime = 200 * time.Millisecond

func idleTime(p plan) time.Duration { return p.Duration / 2 }

func measureLeases(ctx context.Context, b *bench) error {
	return b.withDaemon(ctx, daemonOptions{name: "leases", throughput: leaseIDs}, func(d *daemon) error {
		result, err := b.loadDaemon(ctx, d, load.Options{Count: leasesCount, Connections: leasesConnections})
		if err != nil {
			return err
		}
		b.add(leasesKey, kazahanad, quantityOfLease, result.Rate()*leasesCount/1000/leaseIDs)
		b.add(leasesKey, kazahanad, quantityBusyCPU, result.Server.Seconds()/result.Elapsed.Seconds())
		idle, err := idleShare(ctx, d, idleTime(b.plan))
		b.add(leasesKey, kazahanad, quantityIdleCPU, idle)
		return err
	})
}

// idleShare is the share of a core that the daemon takes without requests.
func idleShare(ctx context.Context, d *daemon, duration time.Duration) (float64, error) {
	before, err := process.CPUTime(d.PID())
	if err != nil {
		return 0, err
	}
	began := time.Now()
	select {
	case <-time.After(duration):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := process.CPUTime(d.PID())
	return (after - before).Seconds() / time.Since(began).Seconds(), err
}
