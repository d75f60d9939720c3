package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// TestStateThatNoRestartMends: the daemon names the state that it cannot use,
// leaves it alone, and ends with the code after which systemd does not try again.
// A directory in use by another process is only waited for.
func TestStateThatNoRestartMends(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start().Terminate()
	path := filepath.Join(s.State, "state")
	before, err := os.ReadFile(path)
	must.Succeed(t, err)
	newer := strings.Replace(string(before), "kazahana-state 1 ", "kazahana-state 2 ", 1)
	testkit.WriteFile(t, path, newer)
	if said := s.Launch().FailsToStart(exitState); !strings.Contains(said, path) || !strings.Contains(said, "version 2") {
		t.Errorf("it said %q", said)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != newer {
		t.Errorf("the file holds %q (%v)", after, err)
	}
	testkit.WriteFile(t, path, string(before))
	s.Start()
	s.Launch("--socket", s.Path("other.sock")).FailsToStart(exitFailure)
}

// TestUnitKnowsTheExitCodes: systemd does not restart the daemon after codes that no restart
// mends, and after no other.
func TestUnitKnowsTheExitCodes(t *testing.T) {
	unit, err := os.ReadFile(filepath.Join("..", "..", "packaging", "systemd", "kazahanad.service"))
	must.Succeed(t, err)
	match := regexp.MustCompile(`(?m)^RestartPreventExitStatus=(.*)$`).FindSubmatch(unit)
	if want := fmt.Sprintf("%d %d", exitUsage, exitState); match == nil || string(match[1]) != want {
		t.Errorf("RestartPreventExitStatus=%s, want %s", match, want)
	}
}
