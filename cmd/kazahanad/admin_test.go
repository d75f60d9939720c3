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

// socket_mode and socket_group count for every Unix socket of a process.
func TestModeAndGroupOfSockets(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	group := strconv.Itoa(os.Getgid())
	if os.Geteuid() == 0 {
		group = "12345" // root gives a socket to any group
	}
	at := func(name string) string { return "unix:" + s.Path(name) }
	given := []string{"--socket-mode", "0620", "--socket-group", group}
	s.Start(append(given, "--admin-listen", at("a.sock"), "--memcached-listen", at("m.sock"), "--http-listen", at("h.sock"))...)
	s.StartLeaseServer(at("l.sock"), append(given, "--provider", "memory:")...)
	for _, path := range []string{s.Socket, s.Path("a.sock"), s.Path("m.sock"), s.Path("h.sock"), s.Path("l.sock")} {
		info, err := os.Stat(path)
		must.Succeed(t, err)
		if gid := strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Gid)); info.Mode().Perm() != 0o620 || gid != group {
			t.Errorf("%s has mode %v and group %s, want 0620 and %s", path, info.Mode(), gid, group)
		}
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
