package ids

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/suite"
	"github.com/kazahana/kazahana/internal/load"
)

const memoryKey = "memory"

const (
	quantityOwn  = "MiB of its own after the load"
	quantityMore = "MiB more, 10,000 connections"
)

// heldConnections are how many connections the row holds, and holders how
// many processes share them: one may have half of max_connections.
const (
	heldConnections = 10_000
	holders         = 2
)

func (b *bench) memoryRow() suite.Row {
	r := suite.Row{
		Words: []string{memoryKey}, Help: "memory after all load, and how much 10,000 connections that made a request each add", Measure: b.measureMemory,
		Note: "of the daemon that was measured beside the others, in the last round: its own pages (RssAnon), without those of the binary, " +
			"which the kernel can drop; then again while 10,000 more connections are open that made one NextID each",
	}
	for _, quantity := range []string{quantityOwn, quantityMore} {
		f := report.Figure{Row: memoryKey, Title: memoryKey, Quantity: quantity, Format: report.MiB}
		r.Figures = append(r.Figures, f)
		r.Targets = append(r.Targets, promise(f, quantity, report.Series{}, 16<<20, true))
	}
	return r
}

func (b *bench) measureMemory(ctx context.Context) error {
	if b.Round < b.Rounds-1 {
		return nil // after all load
	}
	own, err := b.main.Memory()
	if err != nil {
		return err
	}
	b.Add(memoryKey, kazahanad, quantityOwn, float64(own))
	// Go programs raise their limit to the greatest that they may have.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Max < heldConnections+100 {
		b.Notes = append(b.Notes, fmt.Sprintf("%s: no connections were held: a process may have only %d open files (ulimit -Hn)", memoryKey, files.Max))
		return err
	}
	for i := range holders {
		holder, err := process.LaunchPart(filepath.Join(b.Dir, fmt.Sprintf("hold%d.log", i)),
			arguments("hold", load.Options{Socket: b.main.socket, Dialect: load.RPC, Count: 1, Connections: heldConnections / holders})...)
		if err != nil {
			return err
		}
		defer holder.Stop()
		if err := holder.AwaitWords(ctx, time.Minute, held+"\n"); err != nil {
			return fmt.Errorf("hold %d connections: %w", heldConnections/holders, err)
		}
	}
	after, err := b.main.Memory()
	b.Add(memoryKey, kazahanad, quantityMore, float64(after-own))
	return err
}

// held is what the part hold prints when all connections are there.
const held = "held"

// holdMain is the part hold: it opens connections, makes one request on each, and keeps
// them until it is told to end.
func holdMain(o load.Options) error {
	for i := range o.Connections {
		if _, err := load.AskOnce(o); err != nil {
			return fmt.Errorf("connection %d of %d: %w", i+1, o.Connections, err)
		}
	}
	ended := make(chan os.Signal, 1) // without cgo, the runtime takes an empty select for a deadlock
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	fmt.Fprintln(os.Stdout, held)
	<-ended
	return nil
}
