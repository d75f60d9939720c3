package unixsock

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// managed is a socket as a service manager has it: bound, and listening for
// longer than any process that it is given to.
func managed(t *testing.T) (*net.UnixListener, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must.Succeed(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, path
}

// given is the descriptor as another process gets it.
func given(t *testing.T, from interface{ File() (*os.File, error) }) *os.File {
	t.Helper()
	f, err := from.File()
	must.Succeed(t, err)
	return f
}

// TestInheritedSocketOutlivesClose: a connection made while no process accepts waits
// for the next process, and the path keeps its mode.
func TestInheritedSocketOutlivesClose(t *testing.T) {
	manager, path := managed(t)
	must.Succeed(t, os.Chmod(path, 0o640))
	before, err := os.Lstat(path)
	must.Succeed(t, err)
	for round := range 3 {
		waiting, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("round %d: nobody can connect: %v", round, err)
		}
		l, err := Inherit(given(t, manager))
		must.Succeed(t, err)
		if l.Path() != path {
			t.Errorf("path %s, want %s", l.Path(), path)
		}
		must.Succeed(t, l.SetDeadline(time.Now().Add(await.Patience)))
		conn, err := l.AcceptUnix()
		if err != nil {
			t.Fatalf("round %d: the connection that waited is lost: %v", round, err)
		}
		_, _ = conn.Close(), waiting.Close()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		after, err := os.Lstat(path)
		if err != nil || !os.SameFile(before, after) || after.Mode() != before.Mode() {
			t.Fatalf("round %d: the path was touched: %v, %v", round, after, err)
		}
	}
	if _, err := os.Lstat(path + ".lock"); !os.IsNotExist(err) {
		t.Errorf("a lock file beside a socket that is not ours: %v", err)
	}
}

// A daemon started by hand does not take the path of a socket that a service manager listens on,
// even while no process accepts.
func TestInheritedSocketIsNotTakenByListen(t *testing.T) {
	manager, path := managed(t)
	l, err := Inherit(given(t, manager))
	must.Succeed(t, err)
	for _, when := range []string{"accepts", "has stopped"} {
		if _, err := Listen(path, Options{Mode: 0o660}); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("while the process %s: %v", when, err)
		}
		_ = l.Close()
	}
}

func TestInheritRefuses(t *testing.T) {
	dir := t.TempDir()
	regular, err := os.Create(filepath.Join(dir, "file"))
	must.Succeed(t, err)
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must.Succeed(t, err)
	defer tcp.Close()
	packets, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "packets")})
	must.Succeed(t, err)
	defer packets.Close()
	manager, path := managed(t)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
	must.Succeed(t, err)
	defer conn.Close()
	served, err := manager.AcceptUnix()
	must.Succeed(t, err)
	defer served.Close()
	for _, c := range []struct {
		name string
		f    *os.File
		want string
	}{
		{"a file", regular, "not a socket"},
		{"a TCP socket", given(t, tcp), "not a Unix socket"},
		{"a datagram socket", given(t, packets), "not a stream socket"},
		{"a connection", given(t, served), "Accept=no"},
	} {
		if _, err := Inherit(c.f); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
		}
		if err := c.f.Close(); err == nil {
			t.Errorf("%s: the descriptor was left open", c.name)
		}
	}
}
