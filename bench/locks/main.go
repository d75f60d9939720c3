// Package locks measures locks and sequences on SQLite, Redis and etcd: in
// process, through a daemon's socket, over HTTP from a lease server on SQLite, and
// beside the same work done with the bare commands of Redis and etcd.
package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/stores"
	"github.com/kazahana/kazahana/bench/suite"
)

// Ways to use a store: columns of the table.
const (
	bare   = "bare"
	within = "in process"
	socket = "socket"
	server = "HTTP" // of a lease server
)

// Quantities.
const (
	perSecond = "1000/s"
	p50       = "p50, µs"
	p99       = "p99, µs"
	trips     = "round trips"
)

var formats = map[string]func(float64) string{perSecond: report.Kilo, p50: report.Microseconds, p99: report.Microseconds, trips: report.Ratio}

// promise is a target of a work on a store, for some of the ways to use it.
type promise struct {
	store, quantity string
	ways            []string
	bound           float64
	failsAt         float64 // of a ratio to the bare commands; 0: the value itself is meant
}

var (
	ofPairs    = promise{stores.Redis, perSecond, []string{within}, 0.40, 0.30}
	ofValues   = promise{stores.Redis, perSecond, []string{within}, 0.38, 0.30}
	durable    = promise{stores.SQLite, perSecond, []string{within, socket}, 3000, 0}
	allValues  = promise{stores.Redis, perSecond, []string{within, socket}, 100_000, 0}
	handedOver = []promise{
		{stores.SQLite, trips, []string{within, socket}, 2, 0}, {stores.Redis, trips, []string{within, socket}, 2, 0}, {stores.Etcd, trips, []string{within, socket}, 2, 0},
	}
	// One value for each request is what the socket can carry.
	inBlocks = promise{stores.Redis, perSecond, []string{within}, 100_000, 0}
	// One value for each call of the store: what a sequence without gaps can have.
	perCall = promise{stores.Redis, perSecond, []string{within}, 10_000, 0}

	timed = []string{perSecond, p50, p99}
)

var works = []work{
	{"pair", "acquire and release, 1 client", 1, timed, pair, []promise{ofPairs}},
	{"pair64", "acquire and release, 64 clients with a lock each", manyClients, timed, pair, []promise{durable, ofPairs}},
	{"handover", "handover: release to next holder, 64 clients of one lock", manyClients, []string{p50, p99, trips}, handover, handedOver},
	{"next", "one value, 1 client", 1, timed, next(1, 0), []promise{ofValues}},
	{"next64", "one value, 64 clients of one sequence", manyClients, timed, next(1, 0), []promise{ofValues, perCall}},
	{"batch", "100 values at once, 1 client", 1, timed, next(batch, 0), []promise{ofValues}},
	// Many values a second: in order between hosts, and not.
	{"batch64", "100 values at once, 64 clients of one sequence", manyClients, timed, next(batch, 0), []promise{allValues}},
	{"block64", "one value, 64 clients of one sequence, blocks of 1,000", manyClients, timed, next(1, block), []promise{inBlocks}},
}

// on is the name of the row for one store.
func (w work) on(store string) string { return w.key + " on " + store }

// Run is the command of the suite.
func Run(ctx context.Context, args []string) error {
	b := &bench{subjects: map[string][]*subject{}}
	s := &suite.Suite{
		Name: "locks", About: "Locks and sequences beside the bare commands of the stores. A row is a kind of work on a store.\n",
		Defaults: suite.Plan{Rounds: 5, Duration: time.Second},
		Subjects: []string{bare, within, socket, server}, OverFirst: true, Open: b.openAll,
	}
	for _, w := range works {
		for _, store := range allStores {
			s.Rows = append(s.Rows, b.row(w, store))
		}
	}
	return s.Main(ctx, args)
}

func (b *bench) row(w work, store string) suite.Row {
	r := suite.Row{
		Words: []string{w.key, store}, Help: w.title,
		Measure: func(ctx context.Context) error { return b.measure(ctx, w, store) },
	}
	for _, quantity := range w.quantities {
		r.Figures = append(r.Figures, report.Figure{Row: w.on(store), Title: store + ": " + w.title, Quantity: quantity, Format: formats[quantity]})
	}
	for _, p := range w.promises {
		if p.store != store {
			continue
		}
		for _, way := range p.ways {
			t := report.Target{
				Work: w.title, Criterion: fmt.Sprintf("%s, %s, %s", store, way, p.quantity), AtMost: p.quantity == trips,
				Of: report.Series{Row: w.on(store), Subject: way, Quantity: p.quantity}, Bound: p.bound, Format: formats[p.quantity],
			}
			if p.failsAt > 0 {
				t.To, t.Format, t.Margin = t.Of, report.Ratio, 1-p.failsAt/p.bound
				t.To.Subject, t.Criterion = bare, fmt.Sprintf("%s, %s / bare", store, way)
			}
			r.Targets = append(r.Targets, t)
		}
	}
	return r
}

// measure measures a work on a store in all ways once.
func (b *bench) measure(ctx context.Context, w work, store string) error {
	for _, s := range b.subjects[store] {
		name := fmt.Sprintf("%s-%d", w.key, b.Round)
		_, err := w.measure(ctx, s, name+"-warm", b.Duration/10)
		var got map[string]float64
		if err == nil {
			got, err = w.measure(ctx, s, name, b.Duration)
		}
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err == nil && slices.Contains(w.quantities, trips) {
			var spaced map[string]float64
			if spaced, err = unhurried.measure(ctx, s, name+"-trip", b.Duration/2); err == nil {
				got[trips] = 2 * got[p50] / spaced[p50]
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.way, err)
		}
		for quantity, value := range got {
			b.Add(w.on(store), s.way, quantity, value)
		}
	}
	return nil
}
