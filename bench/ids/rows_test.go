//go:build linux

package ids

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/bench/report"
)

func keysOf(rows []row) (keys []string) {
	for _, r := range rows {
		keys = append(keys, r.key)
	}
	return keys
}

func TestSelectRows(t *testing.T) {
	all, err := selectRows("")
	if err != nil || len(all) != len(allRows()) {
		t.Errorf("everything: %v, %v", keysOf(all), err)
	}
	for only, want := range map[string][]string{
		"batch100, 1":            {"1", "batch100"},
		"libraries":              {"libraries"},
		"memory,64,memory,http1": {"64", "http1", "memory"},
	} {
		if some, err := selectRows(only); err != nil || !slices.Equal(keysOf(some), want) {
			t.Errorf("%q: %v, %v", only, keysOf(some), err)
		}
	}
	if _, err := selectRows("1,2"); err == nil || !strings.Contains(err.Error(), `"2"`) {
		t.Errorf("a row that does not exist: %v", err)
	}
}

// TestRowsAreWhole: rows can be told apart, measure something, and say how
// long they take.
func TestRowsAreWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range allRows() {
		if seen[r.key] || r.help == "" || len(r.figures) == 0 || r.measure == nil && r.finish == nil {
			t.Errorf("row %q", r.key)
		}
		seen[r.key] = true
		for _, f := range r.figures {
			if f.Row != r.key || f.Format == nil {
				t.Errorf("row %s has the figure %+v", r.key, f)
			}
		}
	}
	p, err := parsePlan(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if took := p.expected(1 + len(references)); took < 5*time.Minute || took > 12*time.Minute+30*time.Second {
		t.Errorf("a whole run takes %v", took)
	}
}

// TestTargetsAreMeasured: what a target is about is a figure of its row.
func TestTargetsAreMeasured(t *testing.T) {
	rows := map[string]row{}
	for _, r := range allRows() {
		rows[r.key] = r
	}
	known := map[string]bool{kazahanad: true}
	for _, r := range references {
		known[r.name] = true
	}
	shown := func(s report.Series) bool {
		return known[s.Subject] && slices.ContainsFunc(rows[s.Row].figures, func(f report.Figure) bool {
			return f.Quantity == s.Quantity
		})
	}
	var targets []report.Target
	for _, r := range allRows() {
		targets = append(targets, r.targets...)
	}
	for _, target := range targets {
		if !shown(target.Of) || target.To != (report.Series{}) && !shown(target.To) {
			t.Errorf("%s, %s: of %v, to %v", target.Work, target.Criterion, target.Of, target.To)
		}
		if target.Format == nil || target.Work == "" || target.Bound == 0 {
			t.Errorf("target %+v", target)
		}
	}
}

func TestPlan(t *testing.T) {
	p, err := parsePlan([]string{"-short", "-rounds", "2", "-only", "8"}, io.Discard)
	if err != nil || p.Rounds != 2 || p.Duration != 200*time.Millisecond || !p.Short || p.Check || !p.has("8") || p.has("64") {
		t.Errorf("%+v, %v", p, err)
	}
	for _, wrong := range [][]string{{"-rounds", "0"}, {"-duration", "1ms"}, {"fly"}, {"-only", "fly"}, {"-fly"}} {
		if _, err := parsePlan(wrong, io.Discard); err == nil {
			t.Errorf("%v was taken", wrong)
		}
	}
	var help strings.Builder
	_, _ = parsePlan([]string{"-h"}, &help)
	for _, want := range []string{"-check", "-short", "10%", "pipelined", "memory"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("-h does not mention %s", want)
		}
	}
}

// TestVerdicts: targets of rows that were not asked for are left out, and what
// is missing is explained.
func TestVerdicts(t *testing.T) {
	b := &bench{absent: map[string]string{cEcho: "there is no gcc"}, unmeasured: map[string]string{}}
	b.plan.rows, _ = selectRows("1,batch1000")
	for b.round = range 3 {
		b.add("1", kazahanad, quantityRate, 130)
		b.add("1", goEcho, quantityRate, 100)
		b.add("1", redis, quantityRate, 125)
		b.add("batch1000", kazahanad, quantityRate, 7000)
	}
	got := map[string]string{}
	for _, v := range b.verdicts() {
		got[v.Target.Of.Row+" "+v.Target.Criterion] = v.String()
	}
	for criterion, want := range map[string]string{
		"1 rate / Go echo":                   "ok",
		"1 rate / C echo":                    "not measured: there is no gcc",
		"1 rate / Redis":                     "short by 10%",
		"1 p99 / Go echo":                    "not measured: no value",
		"batch1000 IDs/s / Redis INCRBY 100": "not measured: row batch100 was not asked for",
	} {
		if got[criterion] != want {
			t.Errorf("%s: %q, want %q", criterion, got[criterion], want)
		}
	}
	if len(got) != 5 {
		t.Errorf("verdicts: %v", got)
	}
}
