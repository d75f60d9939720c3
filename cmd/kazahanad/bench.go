package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/kazahana/kazahana/internal/address"
	"github.com/kazahana/kazahana/internal/load"
)

// benchWarmup is the time under load before counting begins.
const benchWarmup = 200 * time.Millisecond

type benchCmd struct {
	clientFlags
	Connections int           `name:"connections" min:"1" max:"10000" default:"1" placeholder:"N" help:"Connections, 1 to 10000."`
	Pipeline    int           `name:"pipeline" min:"1" max:"1024" default:"1" placeholder:"N" help:"Requests that a connection sends together, 1 to 1024. The next ones follow once all are answered."`
	Batch       int           `name:"batch" min:"1" max:"65536" default:"1" placeholder:"N" help:"IDs per request, 1 to 65536."`
	Duration    time.Duration `name:"duration" min:"1ms" default:"5s" help:"How long to measure. Ctrl-C ends it sooner."`
	Service     string        `name:"service" placeholder:"NAME" help:"Service to ask (default: the daemon's)."`
}

// Help is the text below the usage line.
func (*benchCmd) Help() string {
	return `Asks a running daemon for IDs as fast as it answers, checks that they increase, and prints their number and the latency of the answers as JSON. ` +
		`The IDs are used up, and other programs of this host wait longer for theirs meanwhile.`
}

// benchReport is what bench prints.
type benchReport struct {
	Service     string       `json:"service"` // "" = the daemon's default
	Connections int          `json:"connections"`
	Pipeline    int          `json:"pipeline"`
	Batch       int          `json:"batch"`
	Seconds     float64      `json:"seconds"`
	Requests    int64        `json:"requests"`
	IDs         int64        `json:"ids"`
	PerSecond   float64      `json:"requests_per_second"`
	IDsPerSec   float64      `json:"ids_per_second"`
	Latency     benchLatency `json:"latency_us"`
}

// benchLatency is the time, in microseconds, from sending a group of pipelined
// requests to the last of their answers.
type benchLatency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

// Run puts load on the daemon and prints the result.
func (c *benchCmd) Run(s *system) error {
	// One call through the client first: its errors explain a wrong socket, service
	// or batch.
	var ids []uint64
	options := map[string]any{"timeout_ms": c.Timeout.Milliseconds()}
	if c.Service != "" {
		options["service"] = c.Service
	}
	if err := c.ask(s, c.Timeout+answerGrace, "NextIDs", &ids, c.Batch, options); err != nil {
		return err
	}
	socket := c.Socket
	if socket == "" {
		found, err := address.Find(s.lookup, s.uid)
		if err != nil {
			return err
		}
		socket = found
	}
	debug.SetGCPercent(-1) // load.Put requires it
	runtime.LockOSThread()
	result, err := load.Put(s.ctx, load.Options{
		Socket: socket, Dialect: load.RPC, Service: c.Service, Count: c.Batch, Connections: c.Connections, Depth: c.Pipeline,
		Warmup: benchWarmup, Duration: c.Duration, Timeout: c.Timeout,
	})
	if err != nil {
		return fmt.Errorf("bench of %s: %w", socket, err)
	}
	return printJSON(s.out, c.report(result))
}

func (c *benchCmd) report(r load.Result) benchReport {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	ids := r.Requests * int64(c.Batch)
	return benchReport{
		Service: c.Service, Connections: c.Connections, Pipeline: c.Pipeline, Batch: c.Batch,
		Seconds: r.Elapsed.Seconds(), Requests: r.Requests, IDs: ids,
		PerSecond: r.Rate(), IDsPerSec: float64(ids) / r.Elapsed.Seconds(),
		Latency: benchLatency{P50: us(r.P50), P90: us(r.P90), P99: us(r.P99), P999: us(r.P999), Max: us(r.Max)},
	}
}
