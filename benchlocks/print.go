//go:build linux

package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"

	"github.com/kazahana/kazahana/bench/report"
)

// print shows the figures and what became of the targets. Its error is that of
// missed targets, if they count.
func (b *bench) print(out io.Writer) error {
	where := fmt.Sprintf("servers and clients pinned to core %d", b.core)
	if b.core < 0 {
		where = "not pinned"
	}
	fmt.Fprintf(out, "method   %s, %s %s; %d rounds of %v for each row and way, interleaved\n", where, runtime.Version(), runtime.GOARCH, b.rounds, b.duration)
	fmt.Fprintf(out, "shown    median of the rounds (least-greatest); a ratio is to the bare commands, the median of the ratios within each round\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "work\tmeasure\tstore\tbare\tin process\tratio\tsocket\tratio\tHTTP\tratio")
	for _, r := range rows {
		if !b.wants(r.key, isRow) {
			continue
		}
		title := r.title
		for _, quantity := range r.quantities {
			measure := quantity
			for _, store := range b.stores() {
				fmt.Fprintf(w, "%s\t%s\t%s%s\n", title, measure, store, b.cells(r, quantity, store))
				title, measure = "", ""
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	verdicts := b.verdicts()
	if err := report.PrintVerdicts(out, verdicts); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, note := range b.absent {
		fmt.Fprintf(out, "note     %s\n", note)
	}
	if missed := report.Missed(verdicts, false); b.check && len(missed) > 0 {
		return fmt.Errorf("%d targets are missed by more than 10%%", len(missed))
	}
	return nil
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

// cells are the figures of one line.
func (b *bench) cells(r row, quantity, store string) (text string) {
	series := func(way string) report.Series {
		return report.Series{Row: r.key, Subject: (&subject{store: store, way: way}).name(), Quantity: quantity}
	}
	for _, way := range allWays {
		cell, ratio := "-", "-"
		if spread, ok := b.samples.Spread(series(way)); ok {
			cell = spread.Show(formats[quantity])
		}
		if spread, ok := b.samples.Ratio(series(way), series(bare)); ok {
			ratio = report.Ratio(spread.Median)
		}
		if text += "\t" + cell; way != bare {
			text += "\t" + ratio
		}
	}
	return text
}

// What is aimed at.
const (
	wantSQLitePairs = 3000
	wantOfRedis     = 1 / 1.5 // of the bare commands' rate
	wantTrips       = 2
)

func (b *bench) verdicts() (all []report.Verdict) {
	judge := func(r, store, way, quantity string, t report.Target) {
		if !b.wants(r, isRow) || !b.wants(store, isStore) {
			return
		}
		t.Of = report.Series{Row: r, Subject: (&subject{store: store, way: way}).name(), Quantity: quantity}
		for _, known := range rows {
			if known.key == r {
				t.Work = known.title
			}
		}
		all = append(all, t.Judge(&b.samples, func(report.Series) string { return "the store is not installed" }))
	}
	for _, way := range []string{within, socket} {
		judge("pair64", onSQLite, way, perSecond, report.Target{Criterion: "SQLite, " + way + ", durable pairs, 1000/s", Bound: wantSQLitePairs, Format: report.Kilo})
	}
	for _, r := range rows {
		if r.key == handoverKey {
			continue
		}
		judge(r.key, onRedis, within, perSecond, report.Target{
			Criterion: "Redis, in process / bare", Bound: wantOfRedis, Format: report.Ratio,
			To: report.Series{Row: r.key, Subject: (&subject{store: onRedis, way: bare}).name(), Quantity: perSecond},
		})
	}
	for _, store := range allStores {
		for _, way := range []string{within, socket} {
			judge(handoverKey, store, way, trips, report.Target{Criterion: store + ", " + way + ", round trips", Bound: wantTrips, AtMost: true, Format: report.Ratio})
		}
	}
	return all
}
