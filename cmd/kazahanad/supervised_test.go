package main

import (
	"context"
	"fmt"
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
)

// handed is the daemon with descriptors that a service manager opened in advance.
func (s *site) handed(files []*os.File, args ...string) *exec.Cmd {
	// Only the process itself knows its PID.
	cmd := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$@"`, "sh", executable}, args...)...)
	cmd.Env = s.environment(fmt.Sprintf("LISTEN_FDS=%d", len(files)), "LISTEN_FDNAMES=kazahanad.socket:other.socket")
	cmd.ExtraFiles = files
	return cmd
}

// manage listens on the site's socket, as a service manager does.
func (s *site) manage() (*net.UnixListener, *os.File) {
	s.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = l.Close() })
	f, err := l.File()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = f.Close() })
	return l, f
}

// TestSocketActivation: whoever connects while no daemon runs is served by the
// next one, with either way to serve; the socket is nobody's but the manager's.
func TestSocketActivation(t *testing.T) {
	for _, loop := range []string{"true", "false"} {
		t.Run("event_loop "+loop, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			_, socket := s.manage()
			if err := os.Chmod(s.socket, 0o640); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(s.socket)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				early, err := dialSocket(s.socket)
				if err != nil {
					t.Fatalf("nobody can connect while no daemon runs: %v", err)
				}
				args := []string{"serve", "--config", "none", "--state-dir", s.state, "--event-loop=" + loop, "--startup-wait", "30s"}
				d := s.launchCommand(s.handed([]*os.File{socket}, args...))
				var id uint64
				waiting, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := early.Call(waiting, "NextID", &id); err != nil || id == 0 {
					t.Fatalf("the connection that waited: %d, %v\n%s", id, err, d.log)
				}
				_ = early.Close()
				d.awaitReady()
				d.terminate()
				if d.err != nil {
					t.Errorf("the daemon ended with %v", d.err)
				}
				after, err := os.Lstat(s.socket)
				if err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
					t.Fatalf("the socket was %v, and is %v, %v", before.Mode(), after, err)
				}
			}
			if _, err := os.Lstat(s.socket + ".lock"); !os.IsNotExist(err) {
				t.Errorf("a lock file: %v", err)
			}
		})
	}
}

// What cannot be what the operator wants stops the start, and says why.
func TestSocketActivationRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, socket := s.manage()
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	tcpFile, err := tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	defer tcpFile.Close()
	for _, c := range []struct {
		name  string
		files []*os.File
		args  []string
		code  int
		want  string
	}{
		{"two sockets", []*os.File{socket, socket}, nil, exitFailure, "2 descriptors were given (kazahanad.socket, other.socket)"},
		{"a TCP socket", []*os.File{tcpFile}, nil, exitFailure, "no Unix socket"},
		{"another path", []*os.File{socket}, []string{"--socket", s.path("other.sock")}, exitUsage,
			"socket (--socket) is " + s.path("other.sock") + ", and the socket that the service manager opened is " + s.socket},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := s.launchCommand(s.handed(c.files, append([]string{"serve", "--config", "none", "--state-dir", s.state}, c.args...)...))
			if line := d.failsToStart(c.code); !strings.Contains(line, c.want) {
				t.Errorf("%q, want %q in it", line, c.want)
			}
		})
	}
}

// Descriptors that are another process's are let be.
func TestSocketOfAnotherProcess(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cmd := s.command(s.serveArgs()...)
	cmd.Env = s.environment("LISTEN_FDS=1", "LISTEN_PID=1")
	s.launchCommand(cmd).awaitReady()
}

// ear is a service manager's notification socket.
type ear struct {
	t    *testing.T
	conn *net.UnixConn
	path string
	all  []string // assignments in the order in which they came
}

func newEar(s *site) *ear {
	s.t.Helper()
	path := s.path("notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return &ear{t: s.t, conn: conn, path: path}
}

// await reads on until an assignment matches, and returns it.
func (e *ear) await(pattern string) string {
	e.t.Helper()
	want := regexp.MustCompile(pattern)
	if err := e.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		e.t.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := e.conn.Read(buf)
		if err != nil {
			e.t.Fatalf("nothing matches %s: %v; heard %q", pattern, err, e.all)
		}
		found := ""
		for line := range strings.Lines(string(buf[:n])) {
			line = strings.TrimSuffix(line, "\n")
			e.all = append(e.all, line)
			if want.MatchString(line) {
				found = line
			}
		}
		if found != "" {
			return found
		}
	}
}

// supervised runs the daemon with an ear, and a watchdog of the interval.
func (s *site) supervised(watchdog time.Duration, args ...string) (*instance, *ear) {
	s.t.Helper()
	e := newEar(s)
	cmd := s.command(s.serveArgs(args...)...)
	cmd.Env = s.environment("NOTIFY_SOCKET="+e.path, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))
	return s.launchCommand(cmd), e
}

// TestNotifications: what a service manager hears of a life, in its order.
func TestNotifications(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d, e := s.supervised(2*time.Second, "--drain-timeout", "7s")
	e.await("^READY=1$")
	if c, err := dialSocket(s.socket); err != nil {
		t.Errorf("said to be ready, and not to be reached: %v", err)
	} else if err := c.Call(t.Context(), "Ping", new(string)); err != nil {
		t.Errorf("said to be ready, and does not answer: %v", err)
	} else {
		_ = c.Close()
	}
	e.await(`^STATUS=regular: machine ID \d+, ends in \d+m$`)
	for range 3 {
		e.await("^WATCHDOG=1$")
	}
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	e.await("^RELOADING=1$")
	if last := e.all[len(e.all)-1]; !regexp.MustCompile(`^MONOTONIC_USEC=\d+$`).MatchString(last) {
		t.Errorf("%q after RELOADING=1", last)
	}
	e.await("^READY=1$")
	d.terminate()
	e.await("^EXTEND_TIMEOUT_USEC=22000000$") // drain_timeout, and what comes after it
	if !slices.Contains(e.all, "STOPPING=1") {
		t.Errorf("heard %q", e.all)
	}
}

// TestProviderThatIsDownDoesNotStarveTheWatchdog: a restart would not mend it.
func TestProviderThatIsDownDoesNotStarveTheWatchdog(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, e := s.supervised(time.Second, "--provider", "redis://127.0.0.1:1/0", "--acquire-retry-interval", "10ms", "--provider-timeout", "100ms")
	e.await("^READY=1$")
	e.await(`^STATUS=fallback_random: no lease: .*refused`)
	for range 8 {
		e.await("^WATCHDOG=1$")
	}
}

// TestLeaseServerNotifications: as the daemon's.
func TestLeaseServerNotifications(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	e := newEar(s)
	config := s.path("lease-server.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("log_level: info\n")
	cmd := s.command("lease-server", "--config", config, "--listen", "unix:"+s.path("leases.sock"), "--state-dir", s.state, "--drain-delay", "0s")
	cmd.Env = s.environment("NOTIFY_SOCKET="+e.path, "WATCHDOG_USEC=1000000")
	if err := os.Mkdir(s.state, 0o700); err != nil {
		t.Fatal(err)
	}
	d := s.launchCommand(cmd)
	e.await("^READY=1$")
	for range 3 {
		e.await("^WATCHDOG=1$")
	}
	write("log_level: debug\nmax_in_flight: 7\n")
	_ = d.cmd.Process.Signal(syscall.SIGHUP)
	e.await("^RELOADING=1$")
	e.await("^READY=1$")
	d.awaitLog(`"changed":["log_level"]`)
	d.awaitLog(`"restart_needed":["max_in_flight"]`)
	write("max_in_flight: 0\n")
	_ = d.cmd.Process.Signal(syscall.SIGHUP)
	d.awaitLog("max_in_flight in " + config + " line 1")
	d.terminate()
	e.await("^EXTEND_TIMEOUT_USEC=")
	if !slices.ContainsFunc(e.all, func(a string) bool { return strings.HasPrefix(a, "STATUS=serving on ") }) {
		t.Errorf("heard %q", e.all)
	}
}

// awaitLog returns when the log has the text.
func (d *instance) awaitLog(text string) {
	d.t.Helper()
	eventually(d.t, "the log says "+text, func() bool { return strings.Contains(d.log.String(), text) })
}

// TestReload: a file that was changed is taken over as far as it can be, one that
// is wrong not at all, and the log names the keys.
func TestReload(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config, secret := s.path("config.yaml"), s.path("secret")
	write := func(path, text string) {
		t.Helper()
		// In one piece: it may be read at any moment.
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(secret, "one")
	write(config, "external_secret_file: "+secret+"\n")
	d := s.start("--config", config)
	hangup := func(log string) {
		t.Helper()
		if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		d.awaitLog(log)
	}
	external := func() string {
		t.Helper()
		c, err := dialSocket(s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var text string
		if err := c.Call(t.Context(), "ToExternal", &text, int64(1)); err != nil {
			t.Fatal(err)
		}
		return text
	}
	hangup("configuration read again: nothing has changed")
	before := external()

	base := "external_secret_file: " + secret + "\n"
	write(config, base+"log_level: debug\nmax_throughput_per_ms: 512\nstate_dir: /nowhere\nservices: {other: {}}\n")
	hangup(`"changed":["log_level","max_throughput_per_ms"]`)
	d.awaitLog(`"restart_needed":["services.other"]`) // a flag outranks state_dir
	status := s.kazahanad("status", "--json").ok(t)
	if !regexp.MustCompile(`"max_throughput_per_ms": *512`).MatchString(status) || strings.Contains(status, "nowhere") {
		t.Errorf("status: %s", status)
	}

	for _, wrong := range []struct{ text, key string }{
		{"max_throughput_per_ms: 1024\nfallback: maybe\n", "fallback in " + config + " line 2"},
		{"max_throughput_per_ms: 1024\nfallbck: none\n", "did you mean fallback?"},
		{"max_throughput_per_ms: 1024\nexternal_secret_file: " + s.path("gone") + "\n", "external_secret_file: open " + s.path("gone")},
	} {
		write(config, wrong.text)
		hangup(wrong.key)
		if status := s.kazahanad("status", "--json").ok(t); !regexp.MustCompile(`"max_throughput_per_ms": *512`).MatchString(status) {
			t.Errorf("%s is in force in part: %s", wrong.text, status)
		}
	}

	write(config, base+"max_throughput_per_ms: 512\n")
	write(secret, "two")
	hangup("external_secret_file of service default (what it holds)")
	eventually(t, "the other secret is used", func() bool { return external() != before })
	if err := os.Remove(filepath.Clean(config)); err != nil {
		t.Fatal(err)
	}
	hangup(config + " does not exist")
	d.terminate()
}

// On a terminal SIGHUP means what it always did: that the terminal is gone.
func TestHangupOfATerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, inside := terminal(t)
	cmd := s.command(s.serveArgs()...)
	cmd.Stdin = inside
	d := s.launchCommand(cmd)
	d.awaitReady()
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	d.awaitEnd()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGHUP {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
}

// Who has SIGHUP ignored, as nohup does, is not heard otherwise.
func TestIgnoredHangup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cmd := exec.Command("sh", append([]string{"-c", `trap "" HUP; exec "$@"`, "sh", executable}, s.serveArgs()...)...)
	cmd.Env = s.environment()
	d := s.launchCommand(cmd)
	d.awaitReady()
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	d.terminate()
	if d.err != nil || strings.Contains(d.log.String(), "configuration read again") {
		t.Errorf("%v\n%s", d.err, d.log)
	}
}

// Settings of a socket that the manager made have no effect on it, which is said,
// unless a socket of the daemon's own has them.
func TestSocketActivationLeavesIdleKeys(t *testing.T) {
	t.Parallel()
	for address, idle := range map[string]bool{"none": true, "unix:": false} {
		s := newSite(t)
		if !idle {
			address += s.path("admin.sock")
		}
		_, socket := s.manage()
		d := s.launchCommand(s.handed([]*os.File{socket}, "serve", "--config", "none", "--state-dir", s.state,
			"--socket-mode", "0600", "--admin-listen", address))
		d.awaitReady()
		d.terminate()
		if got := strings.Contains(d.log.String(), "socket_mode has no effect"); got != idle {
			t.Errorf("admin_listen %s: the warning is there: %v\n%s", address, got, d.log)
		}
	}
}
