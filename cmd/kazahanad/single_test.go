package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A second daemon names the process that is in its way, and the setting.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.Start()
	id := s.Dial().ID()
	process := fmt.Sprintf("process %d", first.PID())
	for share, words := range map[*string][]string{&s.State: {s.State, "state_dir"}, &s.Socket: {s.Socket, "in use by"}} {
		second := newSite(t)
		if share == &s.State {
			second.State = s.State
		} else {
			second.Socket = s.Socket
		}
		said := second.Launch().FailsToStart(exitFailure)
		for _, want := range append(words, process) {
			if !strings.Contains(said, want) {
				t.Errorf("it said %q, want %q in it", said, want)
			}
		}
		if _, err := os.Lstat(second.Socket); share == &s.State && err == nil {
			t.Error("it made its socket before it had the state directory")
		}
	}
	if next := s.Dial().ID(); next <= id {
		t.Errorf("the first daemon went from %d to %d", id, next)
	}
	s.Kazahanad("state", "reset-floor", "--yes").Fails(t, exitFailure, process)
	s.Kazahanad("state", "accept-epoch").Fails(t, exitFailure, process)
}
