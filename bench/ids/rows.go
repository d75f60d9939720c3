//go:build linux

package ids

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/load"
)

// row is one kind of work. It has one or more lines in the table of figures.
type row struct {
	key     string // for -only
	help    string
	figures []report.Figure
	targets []report.Target
	takes   func(p plan, servers int) time.Duration // about, in each round
	// measure is called in each round, finish after the last one; one of them
	// can be nil.
	measure, finish func(context.Context, *bench) error
	note            string // how it is measured, for below the table
}

// shows adds a line about a quantity of the daemon alone to the table of figures.
func (r *row) shows(title, quantity, measure string, format func(float64) string) {
	r.figures = append(r.figures, report.Figure{Row: r.key, Title: title, Quantity: quantity, Measure: measure, Format: format, Alone: true})
}

// promise adds a target about a quantity of the daemon, or its ratio to another series.
func (r *row) promise(title, criterion, of string, to report.Series, bound float64, atMost bool, format func(float64) string) {
	r.targets = append(r.targets, report.Target{
		Work: title, Criterion: criterion, Of: report.Series{Row: r.key, Subject: kazahanad, Quantity: of}, To: to,
		Bound: bound, AtMost: atMost, Format: format,
	})
}

// allRows are the rows in the table's order.
func allRows() []row {
	rows := []row{librariesRow()}
	for _, w := range workloads {
		rows = append(rows, socketRow(w))
	}
	// The last one looks at what the others have left behind.
	return append(rows, greedyRow(), memoryRow())
}

// selectRows understands -only: keys separated by commas, "" for everything.
func selectRows(only string) (chosen []row, err error) {
	all := allRows()
	if only == "" {
		return all, nil
	}
	wanted := map[string]bool{}
	for key := range strings.SplitSeq(only, ",") {
		wanted[strings.TrimSpace(key)] = true
	}
	var keys []string
	for _, r := range all {
		if wanted[r.key] {
			chosen = append(chosen, r)
		}
		delete(wanted, r.key)
		keys = append(keys, r.key)
	}
	for key := range wanted {
		return nil, fmt.Errorf("-only: there is no row %q; there are %s", key, strings.Join(keys, ", "))
	}
	return chosen, nil
}

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
	criterion, subject string
	bound              float64
	atMost             bool
	quantity           string // "": the rate
	row                string // of the other series; "": the same
}

// What INCRBY 100 hands out is what both rows of batches are compared with.
var workloads = []workload{
	{key: "1", title: "NextID, 1 connection", connections: 1, depth: 1, count: 1, targets: []against{
		{criterion: "rate / Go echo", subject: goEcho, bound: 1.25},
		{criterion: "rate / C echo", subject: cEcho, bound: 0.90},
		{criterion: "p99 / Go echo", subject: goEcho, bound: 0.55, atMost: true, quantity: quantityP99},
		{criterion: "rate / Redis", subject: redis, bound: 1.15},
	}},
	{key: "8", title: "NextID, 8 connections", connections: 8, depth: 1, count: 1, targets: []against{
		{criterion: "rate / Go echo", subject: goEcho, bound: 1.25},
	}},
	{key: "64", title: "NextID, 64 connections", connections: 64, depth: 1, count: 1, targets: []against{
		{criterion: "rate / Go echo", subject: goEcho, bound: 1.30},
		{criterion: "rate / C echo", subject: cEcho, bound: 0.88},
		{criterion: "rate / Redis", subject: redis, bound: 1.05},
	}},
	{key: "pipelined", title: "NextID, 1 connection, pipelined by 64", connections: 1, depth: 64, count: 1, targets: []against{
		{criterion: "rate / Redis", subject: redis, bound: 1.8},
		{criterion: "rate / Go echo", subject: goEcho, bound: 0.85},
	}},
	{key: "batch100", title: "NextIDs(100), 1 connection", connections: 1, depth: 1, count: 100, targets: []against{
		{criterion: "IDs/s / Redis INCRBY 100", subject: redis, bound: 0.95},
	}},
	{key: "batch1000", title: "NextIDs(1000), 1 connection", connections: 1, depth: 1, count: 1000, targets: []against{
		{criterion: "IDs/s / Redis INCRBY 100", subject: redis, bound: 7, row: "batch100"},
	}},
	{key: "memcached1", title: "memcached get, 1 connection", connections: 1, depth: 1, count: 1, dialect: load.Memcached, targets: []against{
		{criterion: "rate / katsubushi", subject: katsubushi, bound: 1.3},
	}},
	{key: "memcached64", title: "memcached get, 64 connections", connections: 64, depth: 1, count: 1, dialect: load.Memcached, targets: []against{
		{criterion: "rate / katsubushi", subject: katsubushi, bound: 1.3},
	}},
	{key: "http1", title: "HTTP GET /id, 1 connection", connections: 1, depth: 1, count: 1, dialect: load.HTTP},
}

// Quantities of the rows that are measured on every server.
const (
	quantityRate = "rate" // IDs per second, one for each NextID
	quantityP50  = "p50"
	quantityP99  = "p99"
)

// timed reports whether the time of single requests is of interest.
func (w workload) timed() bool { return w.depth == 1 && w.count == 1 }

func socketRow(w workload) row {
	rate := report.Figure{Row: w.key, Title: w.title, Quantity: quantityRate, Measure: "1000 requests/s", Format: report.Kilo}
	if w.count > 1 {
		rate.Measure, rate.Format = "million IDs/s", report.Mega
	}
	figures := []report.Figure{rate}
	if w.timed() {
		figures = append(figures,
			report.Figure{Row: w.key, Title: w.title, Quantity: quantityP50, Measure: "p50, µs", Format: report.Microseconds},
			report.Figure{Row: w.key, Title: w.title, Quantity: quantityP99, Measure: "p99, µs", Format: report.Microseconds})
	}
	r := row{
		key: w.key, help: w.title, figures: figures,
		takes: func(p plan, servers int) time.Duration {
			if w.dialect != "" {
				servers = 1 + len(w.targets)
			}
			return time.Duration(servers) * loadTime(p.Duration)
		},
		measure: func(ctx context.Context, b *bench) error { return b.measureServers(ctx, w) },
	}
	for _, t := range w.targets {
		to := report.Series{Row: cmp.Or(t.row, w.key), Subject: t.subject, Quantity: cmp.Or(t.quantity, quantityRate)}
		r.promise(w.title, t.criterion, to.Quantity, to, t.bound, t.atMost, report.Ratio)
	}
	return r
}

const (
	warmup = 100 * time.Millisecond
	// patience is how much longer than planned one measurement may take.
	patience = 10 * time.Second
)

// loadTime is how long one measurement of the load generator takes as a whole.
func loadTime(duration time.Duration) time.Duration {
	const process = 50 * time.Millisecond
	return warmup + duration + process
}

// measureServers measures a workload on every server once.
func (b *bench) measureServers(ctx context.Context, w workload) error {
	for _, s := range b.servers {
		socket, dialect := s.speaks(w)
		if socket == "" {
			continue
		}
		result, err := b.load(ctx, s, load.Options{Socket: socket, Dialect: dialect, Count: w.count, Connections: w.connections, Depth: w.depth})
		if err != nil {
			return err
		}
		b.others.note(result)
		b.add(w.key, s.name, quantityRate, result.Rate()*float64(w.count))
		if w.timed() {
			b.add(w.key, s.name, quantityP50, float64(result.P50))
			b.add(w.key, s.name, quantityP99, float64(result.P99))
		}
	}
	return nil
}
