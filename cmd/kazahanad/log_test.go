package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// secret is the secret of a lease in JSON.
var secret = regexp.MustCompile(`"secret":"([0-9a-f]{16,})"`)

// secrets are those of the leases in the site's live directory: the provider's file has none.
func (s *site) secrets() (all []string) {
	s.T.Helper()
	files, err := filepath.Glob(filepath.Join(s.Live, "*", "leases"))
	must.Succeed(s.T, err)
	for _, path := range files {
		content, err := os.ReadFile(path)
		must.Succeed(s.T, err)
		for _, found := range secret.FindAllSubmatch(content, -1) {
			all = append(all, string(found[1]))
		}
	}
	if len(all) == 0 {
		s.T.Fatalf("no lease is in %q", files)
	}
	return all
}

// Every line is an event with its component. Neither the log nor an answer holds a
// secret.
func TestLog(t *testing.T) {
	t.Parallel()
	began := time.Now()
	s := newSite(t)
	before := s.Start(s.Brief()...)
	s.Dial().AwaitMode("regular") // the lease is saved then
	secrets := s.secrets()
	before.Kill()
	d := s.Start(s.Brief("--log-level", "debug", "--admin-listen", "127.0.0.1:0")...)
	c := s.Dial()
	c.ID()
	// An adopted lease is used before the provider is; a file that is moved away
	// before that would be made anew.
	d.AwaitLog("worker id allocated")
	mend := s.moveAway()
	d.AwaitLog(`"level":"error"`)
	mend()
	c.AwaitMode("regular")
	var status any
	c.Must("Status", &status)
	told := fmt.Sprint(status, s.Kazahanad("status").OK(t), s.Kazahanad("status", "--json").OK(t),
		s.Kazahanad("state", "show").OK(t))
	secrets = append(secrets, s.secrets()...)
	d.Terminate()
	text := d.Log.String()
	for _, secret := range secrets {
		if strings.Contains(text+told, secret) { // seed 000-4.5-4
			t.Error("the log or an answer holds the secret of a lease")
		}
	}
	seen := logsOf(t, d.Log) // seed 003-7.1-1
	for _, want := range []event{
		// Seed 003-7.2-1.
		{"info", "serve", "kazahanad is ready"}, {"info", "keeper", "worker id allocated"}, {"info", "keeper", "worker id released"},
	} {
		if !seen[want] {
			t.Errorf("not logged: %+v", want)
		}
	}
	for _, line := range d.Log.Lines(t) {
		if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(line["ts"])); err != nil || at.Before(began.Add(-await.Patience)) || at.After(time.Now().Add(await.Patience)) {
			t.Errorf("a line is dated %q", line["ts"])
		}
	}
	for _, want := range []string{s.Socket, "regular IDs are unique on this host only"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	if a, b, c := strings.Index(text, "answered first"), strings.Index(text, "given back"), strings.LastIndex(text, "worker id released"); a < 0 || a > b || b > c {
		t.Errorf("the steps of the stop are logged at %d, %d and %d:\n%s", a, b, c, text)
	}
}

// A password in the provider's URL is shown nowhere, with any fault of the URL.
func TestPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, address := range []string{
		"redis://user:hunter2@127.0.0.1:1/0", "rediss://:hunter2@127.0.0.1:1/0", "redis://user:hunter2@127.0.0.1:port/0",
		"http://user:hunter2@127.0.0.1:1", "sqlite://user:hunter2@host" + s.Leases(), "frob://hunter2@host",
		"sqlite:" + s.Leases() + "?password=hunter2", "user:hunter2@127.0.0.1:6379", "none:?token=hunter2",
		"host=h user=u password=hunter2", "password = 'hunter2 x' host=h", "postgres://host=h password=hunter2", "postgres://127.0.0.1:1/db?hunter2",
		"postgres://u:12?term=hunter2@127.0.0.1:1/db", "redis://127.0.0.1:1/0?auth=hunter2&frob=1", "etcd://127.0.0.1:1?pasword=hunter2", "https://127.0.0.1:1?hunter2",
	} {
		s.hides([]string{"serve", "--check", "--provider", address}, "hunter2")
	}
	for _, address := range []string{"host=h password=hunter2", "postgres://u:1?term=hunter2@127.0.0.1:1/db"} {
		for _, args := range [][]string{
			{"serve", "--check", "--provider", address, "--fallback", "none", "--max-backward", "frob"},
			{"serve", "--check", "--store", address}, {"serve", address}, {"lease-server", "--check", "--provider", address}, {"doctor", "--provider", address},
		} {
			s.hides(args, "hunter2")
		}
	}
}

// hides runs a command, which must not show any of the fragments.
func (s *site) hides(args []string, fragments ...string) {
	s.T.Helper()
	got := s.Kazahanad(args...)
	if args[0] == "serve" {
		got = s.kazahanadServe(args[1:]...)
	}
	for _, fragment := range fragments {
		if said := got.Stdout + got.Stderr; strings.Contains(said, fragment) {
			s.T.Errorf("%q shows %s: %q", args, fragment, said)
		}
	}
	if args[0] != "doctor" && (got.Code == exitOK && got.Stderr != "" || got.Code != exitOK && !strings.HasPrefix(got.Stderr, "kazahanad: error: ")) {
		s.T.Errorf("%q: %+v", args, got)
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

// collect reads on until the last writer has gone.
func collect(from *os.File, into *testkit.Log) (gone <-chan struct{}) {
	end := make(chan struct{})
	go func() {
		defer close(end)
		_, _ = from.WriteTo(into) // a terminal ends with an error
	}()
	return end
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
		var shown testkit.Log
		gone := collect(outside, &shown)
		d.AwaitReady()
		d.Terminate()
		_ = inside.Close()
		<-gone
		text := shown.String()
		if !strings.Contains(text, "kazahanad is ready") || strings.HasPrefix(text, "{") != c.json {
			t.Errorf("%q: the terminal shows\n%s", c.args, text)
		}
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
