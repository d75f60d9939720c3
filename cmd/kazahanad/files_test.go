package main

import (
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// withFewFiles makes a command of the site that may have 256 files open.
func (s *site) withFewFiles(args ...string) *exec.Cmd {
	cmd := exec.Command("sh", append([]string{"-c", `ulimit -n 256; exec "$0" "$@"`, testkit.Executable()}, args...)...)
	cmd.Env = s.Environment()
	return cmd
}

// flood opens connections that stay until the test's end.
func flood(t *testing.T, network, address string, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial(network, address)
		must.Succeed(t, err)
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\n") // its place may be gone already
	}
}

// However many connections the admin listener gets, open files are left for the socket;
// and the socket's own leave files for the daemon.
func TestOpenFilesAreSetAside(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	at := s.Path("admin.sock")
	d := s.LaunchCommand(s.withFewFiles(s.ServeArgs("--admin-listen", "unix:"+at)...))
	d.AwaitReady()
	flood(t, "unix", at, 400)
	for range 50 {
		s.Dial().ID()
	}
	await.Eventually(t, "the admin listener answers", func() bool {
		code, _, err := testkit.GetUnix(at, "/healthz")
		return err == nil && code == http.StatusOK
	})
	var all []net.Conn
	for range 250 {
		c, err := net.Dial("unix", s.Socket)
		must.Succeed(t, err)
		all = append(all, c)
	}
	for _, c := range all {
		_ = c.Close()
	}
	await.Eventually(t, "the socket answers", func() bool { return s.Kazahanad("id", "--socket", s.Socket).Code == 0 })
	d.Terminate()
	if said := d.Log.String(); strings.Contains(said, "cannot accept connections") {
		t.Errorf("no files were left:\n%s", said)
	}
}
