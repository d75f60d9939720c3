//go:build linux

package ids

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/load"
)

const greedyKey = "greedy"

const quantityBesideGreedy = "p99 beside batches"

// oneLease is the throughput of one lease in wideLayout.
const oneLease = 1024

// greedyRow is what a buggy client may cost others, which docs/security.md bounds.
func greedyRow() row {
	r := row{
		key: greedyKey, help: "p99 of NextID beside a client that pipelines batches of 65,536 without end",
		takes:   func(p plan, _ int) time.Duration { return time.Second + loadTime(p.Duration) },
		measure: measureGreedy,
		note:    "a daemon of its own, with one lease; the client with the batches runs on another core, if there is one",
	}
	const title, measure = "greedy: NextID, 1 connection", "p99, µs"
	r.shows(title, quantityBesideGreedy, measure, report.Microseconds)
	r.promise(title, measure, quantityBesideGreedy, report.Series{}, float64(8*time.Millisecond), true, report.Microseconds)
	return r
}

func measureGreedy(ctx context.Context, b *bench) error {
	d, err := b.startDaemon(ctx, greedyKey, oneLease)
	if d != nil {
		defer d.Stop()
	}
	if err != nil {
		return err
	}
	greedy, err := b.launch.Beside().Launch(filepath.Join(b.dir, "greedy.log"), b.launch.Self, arguments(greedyKey, greedyOptions{d.socket})...)
	if err != nil {
		return err
	}
	defer greedy.Stop()
	if err := greedy.Await(ctx, startLimit, func(context.Context) error {
		if !greedy.Said(answered + "\n") {
			return errors.New("no batch was answered")
		}
		return nil
	}); err != nil {
		return fmt.Errorf("greedy: %w", err)
	}
	result, err := b.load(ctx, &server{name: kazahanad, service: d.Service},
		load.Options{Socket: d.socket, Dialect: load.RPC, Count: 1, Connections: 1, Depth: 1})
	if err != nil {
		return err
	}
	b.others.note(result)
	b.add(greedyKey, kazahanad, quantityBesideGreedy, float64(result.P99))
	return greedy.Failure()
}

// answered is what the part greedy prints after the first answer.
const answered = "answered"

// greedyOptions are the options of the part greedy.
type greedyOptions struct {
	Socket string
}

// greedyMain is the part greedy: it asks for batches as fast as the daemon reads, and reads the
// answers, until it is killed.
func greedyMain(o greedyOptions) error {
	conn, err := net.Dial("unix", o.Socket)
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
