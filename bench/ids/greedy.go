package ids

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/suite"
	"github.com/kazahana/kazahana/internal/load"
)

const greedyKey = "greedy"

// oneLease is the throughput of one lease in wideLayout.
const oneLease = 1024

// greedyRow is what a buggy client may cost others, which docs/security.md bounds.
func (b *bench) greedyRow() suite.Row {
	p99 := report.Figure{Row: greedyKey, Title: "greedy: NextID, 1 connection", Quantity: quantityP99, Format: report.Microseconds}
	return suite.Row{
		Words: []string{greedyKey}, Help: "p99 of NextID beside a client that pipelines batches of 65,536 without end", Measure: b.measureGreedy,
		Figures: []report.Figure{p99}, Targets: []report.Target{promise(p99, quantityP99, report.Series{}, float64(8*time.Millisecond), true)},
		Note: "a daemon of its own, with one lease; the client with the batches runs on another core, if there is one",
	}
}

func (b *bench) measureGreedy(ctx context.Context) error {
	d, err := b.startDaemon(ctx, b.Daemon, greedyKey, oneLease)
	if err != nil {
		return err
	}
	defer d.Stop()
	greedy, err := process.LaunchPart(filepath.Join(b.Dir, "greedy.log"), arguments(greedyKey, d.socket)...)
	if err != nil {
		return err
	}
	defer greedy.Stop()
	if err := greedy.AwaitWords(ctx, startLimit, answered+"\n"); err != nil {
		return err
	}
	result, err := b.load(ctx, d.server(kazahanad), load.Options{Socket: d.socket, Dialect: load.RPC, Count: 1, Connections: 1, Depth: 1})
	if err != nil {
		return err
	}
	b.Add(greedyKey, kazahanad, quantityP99, float64(result.P99))
	return greedy.Failure()
}

// answered is what the part greedy prints after the first answer.
const answered = "answered"

// greedyMain is the part greedy: it asks for batches as fast as the daemon reads, and reads the
// answers, until it is killed.
func greedyMain(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	failed := make(chan error)
	go func() {
		// [0, 1, "NextIDs", [65536]]
		batches := bytes.Repeat([]byte("\x94\x00\x01\xa7NextIDs\x91\xce\x00\x01\x00\x00"), 64)
		for {
			if _, err := conn.Write(batches); err != nil {
				failed <- err
				return
			}
		}
	}()
	go func() {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			fmt.Fprintln(os.Stdout, answered)
		}
		_, err := io.Copy(io.Discard, conn)
		failed <- fmt.Errorf("the daemon ended the connection: %v", err)
	}()
	return <-failed
}
