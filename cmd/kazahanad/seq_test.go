package main

import (
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
)

func TestSeq(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start("--sequences={short: {max_value: 3, on_max: error}}")
	if got := s.Kazahanad("seq", "orders").OK(t); got != "1\n" {
		t.Errorf("%q", got)
	}
	if got := s.Kazahanad("seq", "orders", "-n", "3").OK(t); got != "2\n3\n4\n" {
		t.Errorf("%q", got)
	}
	var values []int64
	if testkit.DecodeJSON(t, s.Kazahanad("seq", "orders", "-n", "2", "--json").OK(t), &values); len(values) != 2 || values[0] != 5 || values[1] != 6 {
		t.Errorf("%v", values)
	}
	if got := s.Kazahanad("seq", "orders", "-n", "65536").OK(t); strings.Count(got, "\n") != 65536 || !strings.HasSuffix(got, "\n65542\n") {
		t.Errorf("65536 values are %d lines, the last of them %q", strings.Count(got, "\n"), got[len(got)-8:])
	}
	s.Kazahanad("seq", "short", "-n", "3").OK(t)
	s.Kazahanad("seq", "short").Fails(t, exitFailure, "SEQUENCE_EXHAUSTED", "max_value=3")
	s.Kazahanad("seq").Fails(t, exitUsage, "KEY")
	s.Kazahanad("seq", "orders", "-n", "0").Fails(t, exitUsage, "-n", `"0"`, "from 1 to 65536")
	s.Kazahanad("seq", "orders", "-n", "65537").Fails(t, exitUsage, "-n", `"65537"`)
	s.Kazahanad("seq", strings.Repeat("k", 513)).Fails(t, exitUsage, "INVALID_PARAMS", "513")
	s.Kazahanad("seq", "orders", "--socket", s.Path("none.sock")).Fails(t, exitFailure, "cannot connect")
}

// The answer is lost, and the same request gets the same values: no gap.
func TestSeqAnswerIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	way := s.lossy("Sequence.NextBatch", true)
	if got := s.Kazahanad("seq", "orders", "-n", "2", "--socket", way.socket).OK(t); got != "1\n2\n" {
		t.Errorf("%q", got)
	}
	<-way.lost
	if got := s.Kazahanad("seq", "orders").OK(t); got != "3\n" {
		t.Errorf("the next is %q", got)
	}
}
