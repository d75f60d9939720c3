package main

import (
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/wire"
)

// eventfulLife has a daemon meet most of what it logs about, and returns the
// log and the secrets of all leases that it ever had.
func eventfulLife(t *testing.T, s *site) (d *instance, secrets []string) {
	t.Helper()
	first := s.start(s.brief()...)
	s.dial().lease()
	first.kill()
	shifted := s.launchShifted(0, s.brief("--log-level", "debug", "--admin-listen", "127.0.0.1:0")...)
	d = shifted.instance
	d.awaitReady()
	c := s.dial()
	c.id()
	// An adopted lease is used before the provider is; a file that is moved
	// away before that would be made anew.
	eventually(t, "a new lease is acquired", func() bool { return strings.Contains(d.log.String(), "worker id allocated") })
	mend := outages["moved away"](t, s)
	c.awaitMode(fallbackModes...)
	eventually(t, "the log tells of the outage", func() bool { return strings.Contains(d.log.String(), `"level":"error"`) })
	mend()
	c.awaitMode("regular")
	shifted.set(time.Hour)
	c.id()
	shifted.set(0)
	c.id()
	if err := c.try("NoSuchMethod", nil); err == nil {
		t.Error("NoSuchMethod was answered")
	}
	s.kazahanad("status").ok(t)
	d.terminate()

	db, err := sql.Open("sqlite", "file:"+s.leases()+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query("SELECT secret FROM slot")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var secret string
		if err := rows.Scan(&secret); err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return d, secrets
}

// Every line is an event with its component, and none holds a secret.
func TestLog(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d, secrets := eventfulLife(t, s)
	events := d.log.lines(t)
	seen := map[string]bool{}
	for _, e := range events {
		component, _ := e["component"].(string)
		if component == "" || e["level"] == nil || e["msg"] == nil {
			t.Errorf("a line lacks its component, level or message: %v", e)
		}
		seen[component] = true
		stamp, _ := e["ts"].(string)
		if at, err := time.Parse(time.RFC3339Nano, stamp); err != nil || time.Since(at).Abs() > time.Minute {
			t.Errorf("a line is dated %q", stamp)
		}
	}
	for _, want := range []string{"serve", "keeper", "clock"} {
		if !seen[want] {
			t.Errorf("there is no line of component %s", want)
		}
	}
	if len(secrets) < 2 || len(secrets[0]) < 16 {
		t.Fatalf("the leases have the secrets %q", secrets)
	}
	for _, secret := range secrets {
		if strings.Contains(d.log.String(), secret) {
			t.Error("the log holds the secret of a lease")
		}
	}
	text := d.log.String()
	for i, want := range []string{
		"kazahanad is ready", s.socket, "regular IDs are unique on this host only", "worker id allocated",
		"not believed", "requests under way are answered first", "leases are given back", "worker id released",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the log does not say %q (%d)", want, i)
		}
	}
	if order := []int{strings.Index(text, "answered first"), strings.Index(text, "given back"), strings.LastIndex(text, "worker id released")}; order[0] > order[1] || order[1] > order[2] {
		t.Errorf("the steps of the stop are logged in the order %v:\n%s", order, text)
	}
}

// What answers requests tells no secret either.
func TestNoSecretInAnswers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("--provider", "sqlite:"+s.leases())
	c := s.dial()
	c.id()
	db, err := sql.Open("sqlite", "file:"+s.leases()+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var secret string
	if err := db.QueryRow("SELECT secret FROM slot").Scan(&secret); err != nil || len(secret) < 16 {
		t.Fatalf("the secret is %q (%v)", secret, err)
	}
	var status any
	c.must("Status", &status)
	for what, text := range map[string]string{
		"Status": fmt.Sprint(status), "status": s.kazahanad("status").ok(t), "status --json": s.kazahanad("status", "--json").ok(t),
		"state show": s.kazahanad("state", "show").ok(t), "state show --json": s.kazahanad("state", "show", "--json").ok(t),
	} {
		if strings.Contains(text, secret) {
			t.Errorf("%s shows the secret of a lease", what)
		}
	}
}

// A password in the provider's URL is shown nowhere, whatever is wrong with it.
func TestPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, address := range []string{
		"redis://user:hunter2@127.0.0.1:1/0", "rediss://:hunter2@127.0.0.1:1/0", "redis://user:hunter2@127.0.0.1:port/0",
		"http://user:hunter2@127.0.0.1:1", "sqlite://user:hunter2@host" + s.leases(), "frob://hunter2@host",
		"sqlite:" + s.leases() + "?password=hunter2", "user:hunter2@127.0.0.1:6379", "none:?token=hunter2",
	} {
		for _, args := range [][]string{
			{"--check", "--provider", address},
			{"--check", "--provider", address, "--fallback", "none", "--max-backward", "frob"},
		} {
			got := s.kazahanadServe(args...)
			if strings.Contains(got.stdout+got.stderr, "hunter2") {
				t.Errorf("serve %q says %q %q", args, got.stdout, got.stderr)
			}
			if got.code == exitOK && got.stderr != "" || got.code != exitOK && !strings.HasPrefix(got.stderr, "kazahanad: error: ") {
				t.Errorf("serve %q: %+v", args, got)
			}
		}
	}
}

// terminal opens a pseudo terminal.
func terminal(t *testing.T) (outside, inside *os.File) {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this system gives no pseudo terminal: %v", err)
	}
	t.Cleanup(func() { _ = outside.Close() })
	number, err := ptyNumber(outside)
	if err != nil {
		t.Skipf("this system gives no pseudo terminal: %v", err)
	}
	inside, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this system gives no pseudo terminal: %v", err)
	}
	t.Cleanup(func() { _ = inside.Close() })
	return outside, inside
}

// On a terminal the log is for people, unless JSON is asked for.
func TestLogOnTerminal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		json bool
	}{
		{nil, false}, {[]string{"--log-format", "json"}, true}, {[]string{"--log-format", "console"}, false},
	} {
		s := newSite(t)
		outside, inside := terminal(t)
		cmd := s.command(s.serveArgs(c.args...)...)
		cmd.Stderr = inside
		d := s.launchCommand(cmd)
		shown := make(chan string, 1)
		go func() {
			var all logBuffer
			_, _ = outside.WriteTo(&all) // ends with an error when the last writer has gone
			shown <- all.String()
		}()
		d.awaitReady()
		d.terminate()
		_ = inside.Close()
		text := <-shown
		if !strings.Contains(text, "kazahanad is ready") || strings.HasPrefix(text, "{") != c.json {
			t.Errorf("%q: the terminal shows\n%s", c.args, text)
		}
	}
}

func TestLogLevel(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.start("--log-level", "warn", "--log-format", "console")
	d.terminate()
	text := d.log.String()
	if strings.Contains(text, "INFO") || !strings.Contains(text, "WARN") || strings.Contains(text, "\x1b[") {
		t.Errorf("the log is\n%s", text)
	}
}

// What peers do wrong is for them to hear, and does not fill the log.
func TestLogIsNotForPeers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.start()
	c := s.dial()
	before := len(d.log.lines(t))
	for range 100 {
		c.refused(wire.CodeUnknownService, map[string]any{"service": "nope"})
		c.refused(wire.CodeInvalidParams, map[string]any{"frob": 1})
	}
	d.terminate()
	if after := len(d.log.lines(t)); after > before+20 {
		t.Errorf("200 wrong requests made %d lines\n%s", after-before, d.log)
	}
}
