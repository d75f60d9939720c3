package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/runner"
)

// onProvider is the arguments of run on a provider.
func onProvider(url, script string, more ...string) []string {
	args := append([]string{"run", "--config", "none", "--provider", url}, more...)
	return append(args, "--", "sh", "-c", script)
}

// launchRun starts run, and returns when it has said the words.
func (s *site) launchRun(words string, args []string) *instance {
	s.t.Helper()
	d := s.launchCommand(s.command(args...))
	d.says(words)
	return d
}

// says returns when the process has written the words to its log.
func (d *instance) says(words string) {
	d.t.Helper()
	eventually(d.t, "it says "+words, func() bool {
		select {
		case <-d.ended:
			d.t.Fatalf("it ended without a word of %q: %v\n%s", words, d.err, d.log)
		default:
		}
		return strings.Contains(d.log.String(), words)
	})
}

const untilTold = `trap 'exit 0' TERM; while :; do sleep 0.05; done`

// switchable are two Redis servers behind one path. The second is the first one's
// replica until it is promoted.
type switchable struct {
	s             *site
	path          string
	first, second *redisServer
}

func (s *site) startSwitchable() *switchable {
	s.t.Helper()
	w := &switchable{s: s, path: s.path("redis.sock")}
	w.first = s.startRedis("--unixsocket", s.path("first.sock"))
	_, port, _ := strings.Cut(w.first.address, ":")
	w.second = s.startRedis("--unixsocket", s.path("second.sock"), "--replicaof", "127.0.0.1 "+port)
	if err := os.Symlink("first.sock", w.path); err != nil {
		s.t.Fatal(err)
	}
	return w
}

// promote cuts the replica off: what the first server grants from now on will be
// lost.
func (w *switchable) promote() {
	w.s.t.Helper()
	grants := func(r *redisServer) string {
		role, err := redisAsk(r.address, "HGET", "{kazahana}:default:pool", "longest_ms")
		return fmt.Sprint(role, err)
	}
	eventually(w.s.t, "the replica has the pool", func() bool {
		_, err := strconv.Atoi(strings.TrimSuffix(grants(w.second), "<nil>"))
		return err == nil && grants(w.first) == grants(w.second)
	})
	if _, err := redisAsk(w.second.address, "REPLICAOF", "NO", "ONE"); err != nil {
		w.s.t.Fatal(err)
	}
}

// failOver puts the second server in the place of the first.
func (w *switchable) failOver() {
	w.s.t.Helper()
	if err := os.Symlink("second.sock", w.path+".new"); err != nil {
		w.s.t.Fatal(err)
	}
	rename(w.s.t, w.path+".new", w.path)
	w.first.kill()
}

// A failover loses a grant, and nothing fences: another run gets the same machine
// ID, and the first one ends its program as soon as it has asked.
func TestRunNoticesATakeover(t *testing.T) {
	t.Parallel()
	for _, through := range []string{"directly", "through a lease server"} {
		t.Run(through, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			w := s.startSwitchable()
			const terms = "?term=10m&ids=7-7&failover_fence=0"
			url, robbers := s.initialised("redis+unix:"+w.path+terms), "redis+unix:"+w.second.unixSocket()+terms
			w.promote()
			if through != "directly" {
				url = "http://" + s.startLeaseServer("127.0.0.1:0", "--provider", url).address
				robbers = "http://" + s.startLeaseServer("127.0.0.1:0", "--provider", robbers).address
			}
			robbed := s.launchRun("starting...", onProvider(url, untilTold, "--verify-interval", "200ms", "--delay", "0"))
			robber := s.launchRun("waiting 1m16s more for a former holder", onProvider(robbers, "echo ran"))
			if !strings.Contains(robber.log.String(), "machine ID: 7,") {
				t.Fatalf("the robber has another machine ID:\n%s", robber.log)
			}
			w.failOver()
			// CMD ended well, but not because it wanted to.
			if code := robbed.code(); code != exitFailure || !strings.Contains(robbed.log.String(), "machine ID 7 is no longer ours") {
				t.Errorf("exit code %d\n%s", code, robbed.log)
			}
			if strings.Contains(robbed.log.String(), "released") {
				t.Errorf("the robbed holder handed back what was not its own:\n%s", robbed.log)
			}
			select {
			case <-robber.ended:
				t.Errorf("the robber ended:\n%s", robber.log)
			default:
			}
		})
	}
}

// The page's arithmetic of --delay is that of the code.
func TestRunPageHasTheDelay(t *testing.T) {
	page, err := os.ReadFile("../../docs/run.md")
	if err != nil {
		t.Fatal(err)
	}
	flags := config.Flags{Config: config.Given("none")}
	settings, err := flags.Load(config.Process{})
	if err != nil {
		t.Fatal(err)
	}
	delay := runner.RobberyDelay(settings.VerifyInterval, settings.ProviderTimeout, provider.DefaultTerm)
	if want := fmt.Sprintf("= %.0f s\n", delay.Seconds()); !strings.Contains(string(page), want) {
		t.Errorf("docs/run.md does not say %q", want)
	}
}

// unixSocket is the path that the server was started with.
func (r *redisServer) unixSocket() string {
	for i, arg := range r.args {
		if arg == "--unixsocket" {
			return r.args[i+1]
		}
	}
	return ""
}

// A holder whose lease the store has forgotten goes on until the lease's end as
// long as the fence stands, and ends when somebody lifts it. A new run waits.
func TestRunUnderAFence(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, terms string) (s *site, r *redisServer, url string, d *instance) {
		s = newSite(t)
		r = s.startRedis()
		url = s.initialised(r.url() + terms)
		return s, r, url, s.launchRun("starting...", onProvider(url, untilTold, "--verify-interval", "100ms"))
	}
	t.Run("the holder goes on", func(t *testing.T) {
		t.Parallel()
		s, r, _, d := start(t, "term=12s")
		r.kill()
		s.runRedis(r) // it has forgotten everything
		d.says("the store has forgotten it and grants no machine ID for now, so it lasts until its end")
		if code := d.code(); code != exitFailure || !strings.Contains(d.log.String(), "could not be extended in time") {
			t.Errorf("exit code %d\n%s", code, d.log)
		}
	})
	t.Run("until the fence is lifted", func(t *testing.T) {
		t.Parallel()
		s, r, url, d := start(t, "term=10m&ids=7-7")
		r.kill()
		s.runRedis(r)
		fenced := "grants are refused until"
		s.kazahanad(onProvider(url, "true", "--wait", "0")...).says(t, exitFailure, "no machine ID", fenced)
		next := s.launchRun(fenced, onProvider(url, "exit 3"))
		if !strings.Contains(next.log.String(), "waiting for a machine ID") {
			t.Errorf("it does not wait:\n%s", next.log)
		}
		s.initialised(url)
		if code := d.code(); code != exitFailure || !strings.Contains(d.log.String(), "machine ID 7 is no longer ours") {
			t.Errorf("exit code %d\n%s", code, d.log)
		}
		if code := next.code(); code != 3 || strings.Contains(next.log.String(), "former holder") {
			t.Errorf("exit code %d\n%s", code, next.log)
		}
	})
	t.Run("a store that kept its data extends", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		r := s.startRedis("--appendonly", "yes", "--appendfsync", "always")
		url := s.initialised(r.url() + "term=15s")
		d := s.launchRun("starting...", onProvider(url, untilTold, "--verify-interval", "100ms"))
		r.kill()
		s.runRedis(r)
		before := *s.leasesJSON("--provider", url).ExtendTTLSuccess
		eventually(t, "the lease is extended", func() bool {
			return *s.leasesJSON("--provider", url).ExtendTTLSuccess > before
		})
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		if code := d.code(); code != 0 || !strings.Contains(d.log.String(), "is released") {
			t.Errorf("exit code %d\n%s", code, d.log)
		}
	})
}
