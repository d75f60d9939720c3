package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Every Unix socket is taken over from a process that was killed, has the
// permissions that are asked for, and is never taken from a process that lives.
func TestUnixSocketsAreTakenOver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	group := strconv.Itoa(os.Getgid())
	if os.Geteuid() == 0 {
		group = "12345" // root gives a socket to any group
	}
	options := []string{"--socket-mode", "0620", "--socket-group", group, "--log-format", "json"}
	path := s.Path("admin.sock")
	for name, c := range map[string]struct {
		args, other []string // other: a second process that wants the same socket
		flag        string
	}{
		"admin_listen": {
			s.ServeArgs("--admin-listen", "unix:"+path),
			[]string{"serve", "--config", "none", "--socket", s.Path("d2.sock"), "--state-dir", s.Path("state2"), "--admin-listen", "unix:" + path},
			"--admin-listen",
		},
		"listen": {
			[]string{"lease-server", "--config", "none", "--provider", "memory:", "--listen", "unix:" + path},
			[]string{"lease-server", "--config", "none", "--provider", "memory:", "--listen", "unix:" + path},
			"--listen",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d *testkit.Instance
			for life := range 2 { // the second one finds what the first left
				d = s.LaunchCommand(s.Command(append(c.args, options...)...))
				await.Eventually(t, "it answers", func() bool {
					select {
					case <-d.Ended:
						t.Fatalf("it ended: %v\n%s", d.Err, d.Log)
					default:
					}
					code, _, err := testkit.GetUnix(path, "/readyz")
					return err == nil && code == http.StatusOK
				})
				if life == 0 {
					d.Kill()
				}
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			gid := strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Gid))
			if info.Mode().Perm() != 0o620 || gid != group {
				t.Errorf("the socket has mode %v and group %s, want 0620 and %s", info.Mode(), gid, group)
			}
			said := s.LaunchCommand(s.Command(c.other...)).FailsToStart(exitFailure)
			for _, want := range []string{path, "in use by process " + strconv.Itoa(d.PID()), c.flag} {
				if !strings.Contains(said, want) {
					t.Errorf("a second process says %q, and not %q", said, want)
				}
			}
			d.Terminate()
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("the socket is left: %v", err)
			}
		})
	}
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	args := []string{"--fallback", "none", "--admin-listen", "unix:" + s.Path("admin.sock")}
	d := s.Start(args...)
	c := s.Dial()
	c.IDs(100)
	c.ID()
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := s.Get(path); code != http.StatusOK || body != "ok\n" {
			t.Errorf("%s answers %d %q", path, code, body)
		}
	}
	if code, _ := s.Get("/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles are there unasked: %d", code)
	}
	_, metrics := s.Get("/metrics")
	for _, want := range []string{
		`kazahana_ids_issued_total{kind="regular",service="default"} 101`,
		`kazahana_leases_active{service="default"} 1`,
		`kazahana_rpc_requests_total{code="ok",method="NextIDs"} 1`,
		`version="` + testkit.Version + `"`, `process_open_fds`, `go_goroutines`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s:\n%s", want, metrics)
		}
	}
	d.Terminate()
	s.Start(s.Brief(args...)...)
	c = s.Dial()
	c.AwaitMode("regular")
	mend := s.moveAway()
	c.AwaitMode("unavailable")
	if code, body := s.Get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, s.Leases()) {
		t.Errorf("/readyz answers %d %q", code, body)
	}
	if code, _ := s.Get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
	mend()
	ready := func() bool {
		code, _ := s.Get("/readyz")
		return code == http.StatusOK
	}
	await.Eventually(t, "once mended, it is ready", ready)

	// The socket's name is lost: removed, then replaced by another process's.
	unready := func(want string) func() bool {
		return func() bool {
			code, body := s.Get("/readyz")
			return code == http.StatusServiceUnavailable && strings.Contains(body, s.Socket) && strings.Contains(body, want)
		}
	}
	aside := s.Socket + ".aside"
	must.Succeed(t, os.Rename(s.Socket, aside))
	await.Eventually(t, "it is missed", unready("was removed"))
	if st := c.Status(); !strings.Contains(st.SocketErr, "was removed") {
		t.Errorf("status says %q", st.SocketErr)
	}
	other, err := net.Listen("unix", s.Socket)
	must.Succeed(t, err)
	await.Eventually(t, "another is noticed", unready(fmt.Sprintf("process %d", os.Getpid())))
	must.Succeed(t, other.Close())
	must.Succeed(t, os.Rename(aside, s.Socket))
	await.Eventually(t, "put back, it is ready", ready)
}
