package suite

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// newSuite has rows of two kinds of work on two stores. Each round it measures 130, and 100 of
// another.
func newSuite() *Suite {
	var r *Run
	s := &Suite{
		Name: "test", About: "About it.", Defaults: Plan{Rounds: 3, Duration: time.Second, Core: -1}, Subjects: []string{"ours", "theirs"},
		Open: func(_ context.Context, run *Run) error {
			r = run
			return nil
		},
	}
	for _, words := range [][]string{{"pair", "Redis"}, {"pair", "etcd"}, {"next", "Redis"}, {"next", "etcd"}} {
		row := strings.Join(words, " on ")
		of, to := report.Series{Row: row, Subject: "ours", Quantity: "rate"}, report.Series{Row: row, Subject: "theirs", Quantity: "rate"}
		s.Rows = append(s.Rows, Row{
			Words: words, Help: words[0], Note: "a note",
			Figures: []report.Figure{{Row: row, Title: row, Quantity: "rate", Format: report.Whole}},
			Targets: []report.Target{{Work: row, Criterion: "ours / theirs", Of: of, To: to, Bound: 1.5, Format: report.Ratio}},
			Measure: func(context.Context) error {
				r.Add(row, "ours", "rate", 130)
				r.Add(row, "theirs", "rate", 100)
				return nil
			},
		})
	}
	return s
}

func TestChoose(t *testing.T) {
	s := newSuite()
	for only, want := range map[string]string{
		"": "pair/Redis pair/etcd next/Redis next/etcd", "next": "next/Redis next/etcd", "etcd": "pair/etcd next/etcd", "next, Redis": "next/Redis",
		"etcd,pair,Redis": "pair/Redis pair/etcd",
	} {
		rows, err := s.choose(only)
		var got []string
		for _, r := range rows {
			got = append(got, strings.Join(r.Words, "/"))
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v, want %q", only, got, err, want)
		}
	}
	if _, err := s.choose("pair,fly"); err == nil || !strings.Contains(err.Error(), `"fly"`) {
		t.Errorf("a row that does not exist: %v", err)
	}
}

func TestParse(t *testing.T) {
	s := newSuite()
	r, err := s.Parse([]string{"-short", "-rounds", "2", "-only", "pair"}, io.Discard)
	if err != nil || r.Rounds != 2 || r.Duration != 200*time.Millisecond || !r.Short || r.Check || len(r.Rows) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, wrong := range [][]string{{"-rounds", "0"}, {"-duration", "1ms"}, {"fly"}, {"-only", "fly"}, {"-fly"}} {
		if _, err := s.Parse(wrong, io.Discard); err == nil {
			t.Errorf("%v was taken", wrong)
		}
	}
	var help strings.Builder
	_, _ = s.Parse([]string{"-h"}, &help)
	for _, want := range []string{"About it.", "-check", "-short", "margin", "  pair ", "  Redis "} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("-h does not mention %s:\n%s", want, help.String())
		}
	}
}

// TestRun: rows that are absent are left out and explained, missed targets are an error where
// that was asked for, and nothing is left behind.
func TestRun(t *testing.T) {
	for _, check := range []bool{false, true} {
		dir := t.TempDir()
		self, err := os.Executable()
		must.Succeed(t, err)
		s := newSuite()
		open := s.Open
		ended := []string{}
		s.Open = func(ctx context.Context, r *Run) error {
			r.Absent["etcd"] = "there is no etcd"
			r.Defer(func() { ended = append(ended, "the first") })
			r.Defer(func() { ended = append(ended, "the last") })
			must.Succeed(t, os.WriteFile(filepath.Join(r.Dir, "file"), nil, 0o600))
			return open(ctx, r)
		}
		r, err := s.Parse([]string{"-only", "pair", "-daemon", self, "-dir", dir}, io.Discard)
		must.Succeed(t, err)
		r.Check = check
		var out strings.Builder
		if err := s.Run(t.Context(), r, &out, io.Discard); (err != nil) != check || check && !strings.Contains(err.Error(), "1 targets are missed") {
			t.Errorf("with -check %v: %v", check, err)
		}
		text := strings.Join(strings.Fields(out.String()), " ")
		for _, want := range []string{
			"machine ", "method not pinned; 3 rounds of 1s", "ratio is ours / other", "pair on Redis rate 130 100 1.30",
			">= 1.50 1.30 short by 13%, margin 10%", "pair on etcd ours / theirs >= 1.50 - not measured: there is no etcd",
			"note pair: a note", "note etcd: not measured: there is no etcd",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, out.String())
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || !slices.Equal(ended, []string{"the last", "the first"}) {
			t.Errorf("left are %v (%v), ended %q", left, err, ended)
		}
	}
}

func TestRunFails(t *testing.T) {
	s := newSuite()
	r, err := s.Parse([]string{"-daemon", "/does/not/exist", "-dir", t.TempDir()}, io.Discard)
	must.Succeed(t, err)
	if err := s.Run(t.Context(), r, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("without a daemon: %v", err)
	}
	r.Daemon = "/proc/self/exe"
	away := errors.New("the server is away")
	s.Rows[1].Measure = func(context.Context) error { return away }
	r.Rows = s.Rows
	if err := s.Run(t.Context(), r, io.Discard, io.Discard); !errors.Is(err, away) || !strings.Contains(err.Error(), "pair, etcd: ") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(r.Dir)); err != nil || len(left) > 0 {
		t.Errorf("left are %v (%v)", left, err)
	}
}
