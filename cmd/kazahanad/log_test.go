package main

import (
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// eventfulLife has a daemon meet most of what it logs about, and returns the
// log and the secrets of all leases that it ever had.
func eventfulLife(t *testing.T, s *site) (d *testkit.Instance, secrets []string) {
	t.Helper()
	first := s.Start(s.Brief()...)
	s.Dial().Lease()
	first.Kill()
	shifted := s.LaunchShifted(0, s.Brief("--log-level", "debug", "--admin-listen", "127.0.0.1:0")...)
	d = shifted.Instance
	d.AwaitReady()
	c := s.Dial()
	c.ID()
	// An adopted lease is used before the provider is; a file that is moved
	// away before that would be made anew.
	await.Eventually(t, "a new lease is acquired", func() bool { return strings.Contains(d.Log.String(), "worker id allocated") })
	mend := s.moveAway()
	c.AwaitMode(testkit.FallbackModes...)
	await.Eventually(t, "the log tells of the outage", func() bool { return strings.Contains(d.Log.String(), `"level":"error"`) })
	mend()
	c.AwaitMode("regular")
	shifted.Set(time.Hour)
	c.ID()
	shifted.Set(0)
	c.ID()
	if err := c.Try("NoSuchMethod", nil); err == nil {
		t.Error("NoSuchMethod was answered")
	}
	s.Kazahanad("status").OK(t)
	d.Terminate()

	db, err := sql.Open("sqlite", "file:"+s.Leases()+"?mode=ro")
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
	events := d.Log.Lines(t)
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
		if strings.Contains(d.Log.String(), secret) {
			t.Error("the log holds the secret of a lease")
		}
	}
	text := d.Log.String()
	for i, want := range []string{
		"kazahanad is ready", s.Socket, "regular IDs are unique on this host only", "worker id allocated",
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

// A password in the provider's URL is shown nowhere, whatever is wrong with it.
func TestPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, address := range []string{
		"redis://user:hunter2@127.0.0.1:1/0", "rediss://:hunter2@127.0.0.1:1/0", "redis://user:hunter2@127.0.0.1:port/0",
		"http://user:hunter2@127.0.0.1:1", "sqlite://user:hunter2@host" + s.Leases(), "frob://hunter2@host",
		"sqlite:" + s.Leases() + "?password=hunter2", "user:hunter2@127.0.0.1:6379", "none:?token=hunter2",
	} {
		for _, args := range [][]string{
			{"--check", "--provider", address},
			{"--check", "--provider", address, "--fallback", "none", "--max-backward", "frob"},
		} {
			got := s.kazahanadServe(args...)
			if strings.Contains(got.Stdout+got.Stderr, "hunter2") {
				t.Errorf("serve %q says %q %q", args, got.Stdout, got.Stderr)
			}
			if got.Code == exitOK && got.Stderr != "" || got.Code != exitOK && !strings.HasPrefix(got.Stderr, "kazahanad: error: ") {
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
		cmd := s.Command(s.ServeArgs(c.args...)...)
		cmd.Stderr = inside
		d := s.LaunchCommand(cmd)
		shown := make(chan string, 1)
		go func() {
			var all testkit.Log
			_, _ = outside.WriteTo(&all) // ends with an error when the last writer has gone
			shown <- all.String()
		}()
		d.AwaitReady()
		d.Terminate()
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
	d := s.Start("--log-level", "warn", "--log-format", "console")
	d.Terminate()
	text := d.Log.String()
	if strings.Contains(text, "INFO") || !strings.Contains(text, "WARN") || strings.Contains(text, "\x1b[") {
		t.Errorf("the log is\n%s", text)
	}
}

// What peers do wrong is for them to hear, and does not fill the log.
func TestLogIsNotForPeers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start()
	c := s.Dial()
	before := len(d.Log.Lines(t))
	for range 100 {
		c.Refused(wire.CodeUnknownService, map[string]any{"service": "nope"})
		c.Refused(wire.CodeInvalidParams, map[string]any{"frob": 1})
	}
	d.Terminate()
	if after := len(d.Log.Lines(t)); after > before+20 {
		t.Errorf("200 wrong requests made %d lines\n%s", after-before, d.Log)
	}
}
