package ids

import (
	"cmp"
	"context"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/suite"
	"github.com/kazahana/kazahana/internal/load"
)

// Names of servers: columns of the table.
const (
	kazahanad  = "kazahanad"
	before     = "before" // another version of the daemon
	goEcho     = "Go echo"
	cEcho      = "C echo"
	redis      = "Redis"
	katsubushi = "katsubushi"
)

// Quantities of the rows that are measured on every server.
const (
	quantityRate = "1000 requests/s"
	quantityIDs  = "million IDs/s" // of batches
	quantityP50  = "p50, µs"
	quantityP99  = "p99, µs"
)

// workload is a row that is measured on every server.
type workload struct {
	key         string
	title       string
	connections int
	depth       int    // requests that are sent together, and awaited together
	count       int    // IDs per request
	dialect     string // "": each server's own
	targets     []against
}

// against is a target about a ratio to another server.
type against struct {
	subject string
	bound   float64
	p99     bool   // at most, of the p99; else at least, of the rate
	row     string // of the other series; "": the same
}

// What INCRBY 100 hands out is what both rows of batches are compared with.
var workloads = []workload{
	{key: "1", title: "NextID, 1 connection", connections: 1, depth: 1, count: 1, targets: []against{
		{subject: goEcho, bound: 1.25}, {subject: cEcho, bound: 0.90}, {subject: goEcho, bound: 0.55, p99: true}, {subject: redis, bound: 1.15},
	}},
	{key: "8", title: "NextID, 8 connections", connections: 8, depth: 1, count: 1, targets: []against{{subject: goEcho, bound: 1.25}}},
	{key: "64", title: "NextID, 64 connections", connections: 64, depth: 1, count: 1, targets: []against{
		{subject: goEcho, bound: 1.30}, {subject: cEcho, bound: 0.88}, {subject: redis, bound: 1.05},
	}},
	{key: "pipelined", title: "NextID, 1 connection, pipelined by 64", connections: 1, depth: 64, count: 1, targets: []against{
		{subject: redis, bound: 1.8}, {subject: goEcho, bound: 0.85},
	}},
	{key: "batch100", title: "NextIDs(100), 1 connection", connections: 1, depth: 1, count: 100, targets: []against{{subject: redis, bound: 0.95}}},
	{key: "batch1000", title: "NextIDs(1000), 1 connection", connections: 1, depth: 1, count: 1000, targets: []against{{subject: redis, bound: 7, row: "batch100"}}},
	{key: "memcached1", title: "memcached get, 1 connection", connections: 1, depth: 1, count: 1, dialect: load.Memcached},
	{key: "memcached64", title: "memcached get, 64 connections", connections: 64, depth: 1, count: 1, dialect: load.Memcached},
}

// rate is the quantity of the answers.
func (w workload) rate() string {
	if w.count > 1 {
		return quantityIDs
	}
	return quantityRate
}

// timed reports whether the time of single requests is of interest.
func (w workload) timed() bool { return w.depth == 1 && w.count == 1 }

func (b *bench) socketRow(w workload) suite.Row {
	rate := report.Figure{Row: w.key, Title: w.title, Quantity: w.rate(), Format: report.Kilo}
	if w.count > 1 {
		rate.Format = report.Mega
	}
	r := suite.Row{
		Words: []string{w.key}, Help: w.title, Figures: []report.Figure{rate},
		Measure: func(ctx context.Context) error {
			if err := b.measureServers(ctx, w); err != nil {
				return err
			}
			return b.main.mustBeRegular(ctx)
		},
	}
	p99 := report.Figure{Row: w.key, Title: w.title, Quantity: quantityP99, Format: report.Microseconds}
	if w.timed() {
		r.Figures = append(r.Figures, report.Figure{Row: w.key, Title: w.title, Quantity: quantityP50, Format: report.Microseconds}, p99)
	}
	for _, t := range w.targets {
		of, what := rate, "rate / "
		if t.p99 {
			of, what = p99, "p99 / "
		}
		to := report.Series{Row: cmp.Or(t.row, w.key), Subject: t.subject, Quantity: of.Quantity}
		r.Targets = append(r.Targets, promise(of, what+t.subject, to, t.bound, t.p99))
	}
	return r
}

// measureServers measures a workload on every server once.
func (b *bench) measureServers(ctx context.Context, w workload) error {
	for _, s := range b.servers {
		socket := s.socket(w)
		if socket == "" {
			continue
		}
		result, err := b.load(ctx, s, load.Options{Socket: socket, Dialect: cmp.Or(w.dialect, s.dialect), Count: w.count, Connections: w.connections, Depth: w.depth})
		if err != nil {
			return err
		}
		b.Add(w.key, s.name, w.rate(), result.Rate()*float64(w.count))
		if w.timed() {
			b.Add(w.key, s.name, quantityP50, float64(result.P50))
			b.Add(w.key, s.name, quantityP99, float64(result.P99))
		}
	}
	return nil
}

const (
	warmup = 100 * time.Millisecond
	// patience is how much longer than planned one measurement may take.
	patience = 10 * time.Second
)
