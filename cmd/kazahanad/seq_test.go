package main

import (
	"strings"
	"testing"
)

func TestSeq(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("--sequences={short: {max_value: 3, on_max: error}}")
	if got := s.kazahanad("seq", "orders").ok(t); got != "1\n" {
		t.Errorf("%q", got)
	}
	if got := s.kazahanad("seq", "orders", "-n", "3").ok(t); got != "2\n3\n4\n" {
		t.Errorf("%q", got)
	}
	var values []int64
	if decodeJSON(t, s.kazahanad("seq", "orders", "-n", "2", "--json").ok(t), &values); len(values) != 2 || values[0] != 5 || values[1] != 6 {
		t.Errorf("%v", values)
	}
	if got := s.kazahanad("seq", "orders", "-n", "65536").ok(t); strings.Count(got, "\n") != 65536 || !strings.HasSuffix(got, "\n65542\n") {
		t.Errorf("65536 values are %d lines, the last of them %q", strings.Count(got, "\n"), got[len(got)-8:])
	}
	s.kazahanad("seq", "short", "-n", "3").ok(t)
	s.kazahanad("seq", "short").fails(t, exitFailure, "SEQUENCE_EXHAUSTED", "max_value=3")
	s.kazahanad("seq").fails(t, exitUsage, "key")
	s.kazahanad("seq", "orders", "-n", "0").fails(t, exitUsage, "-n 0", "1 to 65536")
	s.kazahanad("seq", "orders", "-n", "65537").fails(t, exitUsage, "-n 65537")
	s.kazahanad("seq", strings.Repeat("k", 513)).fails(t, exitUsage, "INVALID_PARAMS", "513")
	s.kazahanad("seq", "orders", "--socket", s.path("none.sock")).fails(t, exitFailure, "cannot connect")
}

// The answer is lost, and the same request gets the same values: no gap.
func TestSeqAnswerIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	way := s.lossy("Sequence.NextBatch", true)
	if got := s.kazahanad("seq", "orders", "-n", "2", "--socket", way.socket).ok(t); got != "1\n2\n" {
		t.Errorf("%q", got)
	}
	<-way.lost
	if got := s.kazahanad("seq", "orders").ok(t); got != "3\n" {
		t.Errorf("the next is %q", got)
	}
}
