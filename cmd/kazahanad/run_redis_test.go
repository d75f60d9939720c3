package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/runner"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// onProvider is the arguments of run on a provider.
func onProvider(url, script string, more ...string) []string {
	args := append([]string{"run", "--config", "none", "--provider", url}, more...)
	return append(args, "--", "sh", "-c", script)
}

// launchRun starts run, and returns when it has said the words.
func (s *site) launchRun(words string, args []string) *testkit.Instance {
	s.T.Helper()
	d := s.LaunchCommand(s.Command(args...))
	d.Says(words)
	return d
}

const untilTold = `trap 'exit 0' TERM; while :; do sleep 0.05; done`

// The page's arithmetic of --delay is the code's.
func TestRunPageHasTheDelay(t *testing.T) {
	page, err := os.ReadFile("../../docs/run.md")
	must.Succeed(t, err)
	var settings config.Serve
	must.Succeed(t, settings.Load(&settings, []string{"--config=none"}, config.Process{}))
	delay := runner.RobberyDelay(settings.VerifyInterval, settings.ProviderTimeout, provider.DefaultTerm)
	if want := fmt.Sprintf("= %.0f s\n", delay.Seconds()); !strings.Contains(string(page), want) {
		t.Errorf("docs/run.md does not say %q", want)
	}
}

// The holder of a lease that the store has forgotten goes on as long as the fence stands, and
// ends when an operator lifts it. A new run waits.
func TestRunUnderAFence(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.StartRedis()
	url := s.Initialised(r.URL() + "term=10m&ids=7-7")
	d := s.launchRun("starting...", onProvider(url, untilTold, "--verify-interval", "100ms")) // seed 001-1
	r.Kill()
	r.Start()
	const fenced = "grants are refused until"
	s.Kazahanad(onProvider(url, "true", "--wait", "0")...).Says(t, exitFailure, "no machine ID", fenced)
	next := s.launchRun(fenced, onProvider(url, "exit 3"))
	if !strings.Contains(next.Log.String(), "waiting for a machine ID") {
		t.Errorf("it does not wait:\n%s", next.Log)
	}
	s.Initialised(url)
	if code := d.Code(); code != exitFailure || !strings.Contains(d.Log.String(), "machine ID 7 is no longer ours") {
		t.Errorf("exit code %d\n%s", code, d.Log)
	}
	// Seed 001-23: where the fence outlasts a lost lease, there is no delay.
	if code := next.Code(); code != 3 || strings.Contains(next.Log.String(), "former holder") {
		t.Errorf("exit code %d\n%s", code, next.Log)
	}
}

// Where a store can lose leases and nothing fences, a run waits for a former holder of
// its machine ID.
func TestRunWaitsForAFormerHolder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	url := s.Initialised(s.StartRedis().URL() + "failover_fence=0")
	s.Env = append(s.Env, "KAZAHANA_PROVIDER_TIMEOUT=3s")                                   // how long it waits depends on that
	d := s.launchRun("waiting 1m16s more for a former holder", onProvider(url, "echo ran")) // seed 001-23
	_ = d.Cmd.Process.Signal(syscall.SIGTERM)
	if code := d.Code(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d\n%s", code, d.Log)
	}
}
