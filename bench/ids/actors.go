//go:build linux

package ids

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	service "github.com/kazahana/kazahana/internal/daemon"
)

const actorsKey = "actors"

const (
	// manyActors are activated on one daemon; in a short run fewActors, which says
	// nothing of the memory.
	manyActors, fewActors = 100_000, 1000
	actorsTitle           = "100,000 actors on one daemon"
	// resolvers ask at once: more than the daemon works on at once.
	resolvers   = 256
	actorsTime  = 2 * time.Minute // about, for many
	actorsLimit = 10 * time.Minute
)

// Quantities of the row.
const (
	quantityActors   = "memory" // bytes
	quantityBare     = "memory before"
	quantityActivate = "activations per second"
)

func actorsRow() row {
	r := row{
		key: actorsKey, help: "resident memory of a daemon with 100,000 activations",
		takes: func(p plan, _ int) time.Duration {
			if p.Short {
				return actorsTime / manyActors * fewActors
			}
			return actorsTime / time.Duration(p.Rounds) // all rounds together
		},
		finish: finishActors,
		note: fmt.Sprintf("once, after the last round: VmRSS of a daemon of the row's own, all settings and the store as shipped (SQLite), right after a process has "+
			"activated all, %d at a time; nothing is passivated before", resolvers),
	}
	r.shows(actorsTitle, quantityActors, "MiB", report.MiB).atMost(200 << 20)
	r.shows(actorsTitle, quantityBare, "MiB before", report.MiB)
	r.shows(actorsTitle, quantityActivate, "1000 activations/s", report.Kilo)
	return r
}

func finishActors(ctx context.Context, b *bench) error {
	wanted := manyActors
	if b.plan.Short {
		wanted = fewActors
		b.unmeasured[actorsKey] = fmt.Sprintf("a short run has only %d", fewActors)
	}
	return b.withDaemon(ctx, daemonOptions{name: "actors", authority: placedHere}, func(d *daemon) error {
		actors, err := newActors(ctx, d, 1)
		if err != nil {
			return err
		}
		defer actors.close()
		before, err := process.Resident(d.PID())
		if err != nil {
			return err
		}
		began := time.Now()
		if err := actors.activate(ctx, wanted); err != nil {
			return err
		}
		b.add(actorsKey, kazahanad, quantityActivate, float64(wanted)/time.Since(began).Seconds())
		after, err := process.Resident(d.PID())
		if err == nil && wanted == manyActors {
			b.add(actorsKey, kazahanad, quantityBare, float64(before))
			b.add(actorsKey, kazahanad, quantityActors, float64(after))
		}
		return err
	})
}

// activate has so many actors activated, and fails unless all are.
func (a *actors) activate(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, actorsLimit, fmt.Errorf("actors: not all are activated after %v", actorsLimit))
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range resolvers {
		group.Go(func() error {
			for {
				i := next.Add(1)
				if i > int64(n) {
					return nil
				}
				r, err := a.client.Resolve(ctx, actorKind, fmt.Sprintf("actor-%06d", i), actorsLimit)
				if err != nil {
					return fmt.Errorf("actors: number %d: %w", i, err)
				}
				if r.PID == "" {
					return fmt.Errorf("actors: number %d belongs to %s and has no process", i, r.Authority)
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var now service.SnapshotPage
	if err := a.client.Call(context.WithoutCancel(ctx), "Placement.Snapshot", &now, map[string]any{"limit": 1}); err != nil || now.Total != n {
		return fmt.Errorf("actors: %d of %d are still activated (%v)", now.Total, n, err)
	}
	return nil
}
