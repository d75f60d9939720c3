//go:build linux

package locks

import (
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/kazahana/kazahana/bench/report"
)

// print shows the figures and what became of the targets. Its error is that of
// missed targets, if they count.
func (b *bench) print(out io.Writer) error {
	where := fmt.Sprintf("servers and clients pinned to core %d", b.Core)
	if b.Core < 0 {
		where = "not pinned"
	}
	fmt.Fprintf(out, "method   %s, %s %s; %d rounds of %v for each row and way, interleaved\n", where, runtime.Version(), runtime.GOARCH, b.Rounds, b.Duration)
	fmt.Fprintf(out, "shown    median of the rounds (least-greatest); a ratio is to the bare commands, the median of the ratios within each round\n\n")
	var figures []report.Figure
	for _, r := range b.rows {
		for _, store := range b.stores() {
			for _, quantity := range r.quantities {
				figures = append(figures, report.Figure{
					Row: r.on(store), Title: store + ": " + r.title, Quantity: quantity, Format: formats[quantity], OverFirst: true,
				})
			}
		}
	}
	if err := report.PrintFigures(out, &b.samples, allWays, figures); err != nil {
		return err
	}
	return b.Conclude(out, b.verdicts(), b.absent)
}

// stores are those that there are.
func (b *bench) stores() (names []string) {
	for _, s := range b.subjects {
		if !slices.Contains(names, s.store) {
			names = append(names, s.store)
		}
	}
	return names
}

// What is aimed at.
const (
	wantSQLitePairs = 3000
	wantPairs       = 0.40 // of the bare commands' rate on Redis
	wantValues      = 0.38
	failsAt         = 0.30 // of the bare commands' rate
	wantFewest      = 0.10 // of the mean of all clients: none starves
	wantTrips       = 2
	wantThroughput  = 100_000 // values a second on one Redis
)

func (b *bench) verdicts() (all []report.Verdict) {
	judge := func(r row, store, way, quantity string, t report.Target) {
		if !b.wants(store, isStore) {
			return
		}
		t.Work, t.Of = r.title, report.Series{Row: r.on(store), Subject: way, Quantity: quantity}
		all = append(all, t.Judge(&b.samples, func(report.Series) string { return "the store is not installed" }))
	}
	for _, r := range b.rows {
		if r.apart {
			judge(r, onRedis, apart, fewest, report.Target{Criterion: "Redis, processes, fewest calls / mean", Bound: wantFewest, Format: report.Ratio})
		}
		if r.key == manyPairs.key {
			for _, way := range []string{within, socket} {
				judge(r, onSQLite, way, perSecond, report.Target{Criterion: "SQLite, " + way + ", durable pairs, 1000/s", Bound: wantSQLitePairs, Format: report.Kilo})
			}
		}
		if r.key == manyBatches.key || r.key == ofBlocks.key {
			for _, way := range []string{within, socket} {
				if r.key == manyBatches.key || way == within { // one value for each request is what the socket can carry
					judge(r, onRedis, way, perSecond, report.Target{Criterion: "Redis, " + way + ", 1000 values/s", Bound: wantThroughput, Format: report.Kilo})
				}
			}
			continue
		}
		if r.key != handovers.key {
			want := wantValues
			if r.key == onePair.key || r.key == manyPairs.key {
				want = wantPairs
			}
			judge(r, onRedis, within, perSecond, report.Target{
				Criterion: "Redis, in process / bare", Bound: want, Fails: failsAt, Format: report.Ratio,
				To: report.Series{Row: r.on(onRedis), Subject: bare, Quantity: perSecond},
			})
			continue
		}
		for _, store := range allStores {
			for _, way := range []string{within, socket} {
				judge(r, store, way, trips, report.Target{Criterion: store + ", " + way + ", round trips", Bound: wantTrips, AtMost: true, Format: report.Ratio})
			}
		}
	}
	return all
}
