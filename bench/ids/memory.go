//go:build linux

package ids

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/load"
)

const memoryKey = "memory"

// Quantities of the row, in bytes.
const (
	quantityOwn    = "of its own"
	quantityLoaded = "after the load"
	quantityMore   = "more for connections"
)

// heldConnections are how many connections the row holds, and holders how
// many processes share them: one may have half of max_connections.
const (
	heldConnections = 10_000
	holders         = 2
)

func memoryRow() row {
	r := row{
		key: memoryKey, help: "memory after all load, and how much 10,000 connections that made a request each add",
		takes:  func(plan, int) time.Duration { return 0 },
		finish: finishMemory,
		note: "of the daemon that was measured beside the others, once, after the last round: its own pages (RssAnon), and all that are in " +
			"memory (VmRSS), of which the kernel can drop those of the binary; then its own again while 10,000 more connections are open " +
			"that made one NextID each",
	}
	for _, q := range [][2]string{{quantityOwn, "MiB of its own after the load"}, {quantityLoaded, "MiB with the binary's pages"}, {quantityMore, "MiB more, 10,000 connections"}} {
		r.shows("memory", q[0], q[1], report.MiB)
		if q[0] != quantityLoaded {
			r.promise("memory", q[1], q[0], report.Series{}, 16<<20, true, report.MiB)
		}
	}
	return r
}

func finishMemory(ctx context.Context, b *bench) error {
	own, err := process.Own(b.main.PID())
	if err != nil {
		return err
	}
	all, err := process.Resident(b.main.PID())
	if err != nil {
		return err
	}
	b.add(memoryKey, kazahanad, quantityOwn, float64(own))
	b.add(memoryKey, kazahanad, quantityLoaded, float64(all))
	return b.holding(ctx, func() error {
		after, err := process.Own(b.main.PID())
		b.add(memoryKey, kazahanad, quantityMore, float64(after-own))
		return err
	})
}

// holding runs do while there are many more connections to the daemon. If this
// machine does not allow as many, it notes that for the row, and do is not run.
func (b *bench) holding(ctx context.Context, do func() error) error {
	if b.fewFiles != nil {
		b.unmeasured[memoryKey] = b.fewFiles.Error()
		return nil
	}
	for i := range holders {
		holder, err := b.launch.Launch(filepath.Join(b.dir, fmt.Sprintf("hold%d.log", i)), b.launch.Self,
			arguments("hold", load.Options{Socket: b.main.socket, Dialect: load.RPC, Count: 1, Connections: heldConnections / holders})...)
		if err != nil {
			return err
		}
		defer holder.Stop()
		const limit = time.Minute
		err = holder.Await(ctx, limit, func(context.Context) error {
			if !holder.Said(held + "\n") {
				return fmt.Errorf("fewer than %d connections were answered", heldConnections/holders)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("hold connections: %w", err)
		}
	}
	return do()
}
