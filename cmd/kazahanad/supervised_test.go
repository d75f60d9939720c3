package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// handed is the daemon with descriptors that a service manager opened in advance.
func (s *site) handed(files []*os.File, args ...string) *exec.Cmd {
	// Only the process itself knows its PID.
	cmd := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$@"`, "sh", testkit.Executable()}, args...)...)
	cmd.Env = s.Environment(fmt.Sprintf("LISTEN_FDS=%d", len(files)), "LISTEN_FDNAMES=kazahanad.socket:other.socket")
	cmd.ExtraFiles = files
	return cmd
}

// manage listens on the site's socket, as a service manager does.
func (s *site) manage() (*net.UnixListener, *os.File) {
	s.T.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.Socket})
	must.Succeed(s.T, err)
	s.T.Cleanup(func() { _ = l.Close() })
	f, err := l.File()
	must.Succeed(s.T, err)
	s.T.Cleanup(func() { _ = f.Close() })
	return l, f
}

// TestSocketActivation: a client that connects while no daemon runs is served by the next one;
// the socket is the manager's alone.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, socket := s.manage()
	must.Succeed(t, os.Chmod(s.Socket, 0o640))
	before, err := os.Lstat(s.Socket)
	must.Succeed(t, err)
	for range 2 {
		early, err := testkit.DialSocket(s.Socket)
		if err != nil {
			t.Fatalf("nobody can connect while no daemon runs: %v", err)
		}
		args := []string{"serve", "--config", "none", "--state-dir", s.State, "--startup-wait", "30s"}
		d := s.LaunchCommand(s.handed([]*os.File{socket}, args...))
		var id uint64
		waiting, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		if err := early.Call(waiting, "NextID", &id); err != nil || id == 0 {
			t.Fatalf("the connection that waited: %d, %v\n%s", id, err, d.Log)
		}
		_ = early.Close()
		d.AwaitReady()
		d.Terminate()
		if d.Err != nil {
			t.Errorf("the daemon ended with %v", d.Err)
		}
		after, err := os.Lstat(s.Socket)
		if err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
			t.Fatalf("the socket was %v, and is %v, %v", before.Mode(), after, err)
		}
	}
	if _, err := os.Lstat(s.Socket + ".lock"); !os.IsNotExist(err) {
		t.Errorf("a lock file: %v", err)
	}
}

// What cannot be what the operator wants stops the start, and says why.
func TestSocketActivationRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, socket := s.manage()
	for _, c := range []struct {
		files []*os.File
		args  []string
		code  int
		want  string
	}{
		{[]*os.File{socket, socket}, nil, exitFailure, "2 descriptors were given (kazahanad.socket, other.socket)"},
		{[]*os.File{socket}, []string{"--socket", s.Path("other.sock")}, exitUsage,
			"socket (--socket) is " + s.Path("other.sock") + ", and the socket that the service manager opened is " + s.Socket},
	} {
		d := s.LaunchCommand(s.handed(c.files, append([]string{"serve", "--config", "none", "--state-dir", s.State}, c.args...)...))
		if line := d.FailsToStart(c.code); !strings.Contains(line, c.want) {
			t.Errorf("%q, want %q in it", line, c.want)
		}
	}
}

// A daemon that cannot start says so to the clients that wait for it, and leaves the
// socket to the next start.
func TestClientsOfADaemonThatCannotStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, socket := s.manage()
	unusable := s.Path("unusable")
	must.Succeed(t, os.Mkdir(unusable, 0o777))
	must.Succeed(t, os.Chmod(unusable, 0o777))
	if err := os.Lchown(unusable, 1, 1); err != nil {
		unusable = "" // only root can give it away
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--state-dir", s.State, "--lease-terms", "1m"}, exitUsage, "its configuration is wrong"},
		{[]string{"--state-dir", s.State, "--provider", "nosuch://x"}, exitUsage, "its configuration is wrong"},
		{[]string{"--state-dir", unusable}, exitState, "it cannot use its state directory"},
		{[]string{"--state-dir", s.State, "--admin-listen", s.taken()}, exitFailure, "tries again"},
	} {
		if c.args[1] == "" {
			continue
		}
		var waiting []net.Conn
		for range 3 {
			waiting = append(waiting, s.asked())
		}
		d := s.LaunchCommand(s.handed([]*os.File{socket}, append([]string{"serve", "--config", "none"}, c.args...)...))
		for _, early := range waiting {
			answer, err := io.ReadAll(early)
			if err != nil || !bytes.Contains(answer, []byte("START_FAILED: ")) || !bytes.Contains(answer, []byte(c.want)) {
				t.Errorf("a client that waited got %q, %v; want START_FAILED and %q", answer, err, c.want)
			}
		}
		d.FailsToStart(c.code)
	}
	early := s.asked()
	d := s.LaunchCommand(s.handed([]*os.File{socket}, "serve", "--config", "none", "--state-dir", s.State, "--startup-wait", "30s"))
	answer := make([]byte, 64)
	if n, err := early.Read(answer); err != nil || !bytes.Contains(answer[:n], []byte("pong")) {
		t.Errorf("after the mistake was mended: %q, %v", answer[:n], err)
	}
	d.Terminate()
}

// asked is a connection to the socket on which a Ping was sent.
func (s *site) asked() net.Conn {
	s.T.Helper()
	conn, err := net.Dial("unix", s.Socket)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(await.Patience))
		_, err = conn.Write([]byte("\x94\x00\x01\xa4Ping\x90"))
	}
	must.Succeed(s.T, err)
	s.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

// supervised runs the daemon with an ear, and a watchdog of the interval.
func (s *site) supervised(watchdog time.Duration, args ...string) (*testkit.Instance, *testkit.Ear) {
	s.T.Helper()
	e := testkit.NewEar(s.Site)
	cmd := s.Command(s.ServeArgs(args...)...)
	cmd.Env = s.Environment("NOTIFY_SOCKET="+e.Path, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))
	return s.LaunchCommand(cmd), e
}

// TestNotifications: what a service manager hears of a life, in its order.
func TestNotifications(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d, e := s.supervised(2*time.Second, "--drain-timeout", "7s")
	e.Await("^READY=1$")
	s.Dial().Must("Ping", new(string)) // a daemon that says it is ready answers
	e.Await(`^STATUS=regular: machine ID \d+, ends in \d+m$`)
	for range 3 {
		e.Await("^WATCHDOG=1$")
	}
	must.Succeed(t, d.Cmd.Process.Signal(syscall.SIGHUP))
	e.Await("^RELOADING=1$")
	if last := e.All[len(e.All)-1]; !regexp.MustCompile(`^MONOTONIC_USEC=\d+$`).MatchString(last) {
		t.Errorf("%q after RELOADING=1", last)
	}
	e.Await("^READY=1$")
	d.Terminate()
	e.Await("^EXTEND_TIMEOUT_USEC=22000000$") // drain_timeout, and what comes after it
	if !slices.Contains(e.All, "STOPPING=1") {
		t.Errorf("heard %q", e.All)
	}
}

// TestLeaseServerNotifications: as the daemon's.
func TestLeaseServerNotifications(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	e := testkit.NewEar(s.Site)
	config := s.Path("lease-server.yaml")
	testkit.WriteFile(t, config, "log_level: info\n")
	cmd := s.Command("lease-server", "--config", config, "--listen", "unix:"+s.Path("leases.sock"), "--state-dir", s.State, "--drain-delay", "0s")
	cmd.Env = s.Environment("NOTIFY_SOCKET="+e.Path, "WATCHDOG_USEC=1000000")
	testkit.Mkdir(t, s.State)
	d := s.LaunchCommand(cmd)
	e.Await("^READY=1$")
	for range 3 {
		e.Await("^WATCHDOG=1$")
	}
	testkit.WriteFile(t, config, "log_level: debug\nmax_in_flight: 7\n")
	_ = d.Cmd.Process.Signal(syscall.SIGHUP)
	e.Await("^RELOADING=1$")
	e.Await("^READY=1$")
	d.AwaitLog(`"changed":["log_level"]`)
	d.AwaitLog(`"restart_needed":["max_in_flight"]`)
	testkit.WriteFile(t, config, "max_in_flight: 0\n")
	_ = d.Cmd.Process.Signal(syscall.SIGHUP)
	d.AwaitLog("max_in_flight in " + config + " line 1")
	d.Terminate()
	e.Await("^EXTEND_TIMEOUT_USEC=")
	if !slices.ContainsFunc(e.All, func(a string) bool { return strings.HasPrefix(a, "STATUS=serving on ") }) {
		t.Errorf("heard %q", e.All)
	}
}

// TestReload: a file that was changed is taken over as far as it can be, a faulty one not at all,
// and the log names the keys.
func TestReload(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.Path("config.yaml")
	write := func(text string) {
		t.Helper()
		// In one piece: it may be read at any moment.
		testkit.WriteFile(t, config+".new", text)
		testkit.Rename(t, config+".new", config)
	}
	write("fallback: none\n")
	d := s.Start("--config", config)
	hangup := func(log string) {
		t.Helper()
		must.Succeed(t, d.Cmd.Process.Signal(syscall.SIGHUP))
		d.AwaitLog(log)
	}
	hangup("configuration read again: nothing has changed")

	for _, wrong := range []struct{ text, key string }{
		{"fallback: none\nlog_level: loud\n", "log_level in " + config + " line 2"},
		{"log_level: debug\nfallbck: none\n", "did you mean fallback?"},
	} {
		write(wrong.text)
		hangup(wrong.key)
		if strings.Contains(d.Log.String(), `"changed":`) {
			t.Errorf("%s is in force in part: %s", wrong.text, d.Log)
		}
	}
	write("log_level: debug\nfallback: cached\nstate_dir: /nowhere\nservices: {other: {}}\n")
	hangup(`"changed":["log_level"]`)
	d.AwaitLog(`"restart_needed":["fallback","services"]`) // a flag outranks state_dir
	if status := s.Kazahanad("status", "--json").OK(t); !regexp.MustCompile(`"fallback": *"none"`).MatchString(status) {
		t.Errorf("status: %s", status)
	}
	must.Succeed(t, os.Remove(filepath.Clean(config)))
	hangup(config + " does not exist")
	d.Terminate()
}

// On a terminal SIGHUP keeps its old meaning: that the terminal is gone.
func TestHangupOfATerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, inside := terminal(t)
	for name, d := range map[string]*testkit.Instance{
		"serve":        s.onInput(inside, s.ServeArgs()...),
		"lease-server": s.onInput(inside, "lease-server", "--config", "none", "--listen", "unix:"+s.Path("l.sock"), "--provider", "memory:", "--state-dir", s.Path("l")),
	} {
		d.Says("ready")
		must.Succeed(t, d.Cmd.Process.Signal(syscall.SIGHUP))
		d.AwaitEnd()
		if status, ok := d.Cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGHUP {
			t.Errorf("%s ended with %v", name, d.Cmd.ProcessState)
		}
	}
}

// onInput starts kazahanad with this standard input.
func (s *site) onInput(input *os.File, args ...string) *testkit.Instance {
	s.T.Helper()
	cmd := s.Command(args...)
	cmd.Stdin = input
	return s.LaunchCommand(cmd)
}
