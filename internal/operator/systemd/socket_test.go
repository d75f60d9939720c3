package systemd

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

// TestNotify: a notice arrives in one message at a real socket, and there is none without a
// socket.
func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if told, err := Notify(Ready); told || err != nil {
		t.Errorf("without a manager: %v, %v", told, err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must.Succeed(t, err)
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if told, err := Notify(Ready, Status("all\nwell")); !told || err != nil {
		t.Errorf("%v, %v", told, err)
	}
	b := make([]byte, 1000)
	n, err := l.Read(b)
	if err != nil || string(b[:n]) != "READY=1\nSTATUS=all well" {
		t.Errorf("%q, %v", b[:n], err)
	}
	_ = l.Close()
	if _, err := Notify(Ready); err == nil || !strings.Contains(err.Error(), "NOTIFY_SOCKET") {
		t.Errorf("a manager that is gone: %v", err)
	}
}

func TestOnlyOneSocket(t *testing.T) {
	if l, err := only(nil); l != nil || err != nil {
		t.Errorf("none: %v, %v", l, err)
	}
	dir := t.TempDir()
	var files []*os.File
	for _, name := range []string{"a", "b"} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name)})
		must.Succeed(t, err)
		defer l.Close()
		f, err := l.File()
		must.Succeed(t, err)
		files = append(files, f)
	}
	if _, err := only(files); err == nil || !strings.Contains(err.Error(), "2 descriptors") {
		t.Errorf("two: %v", err)
	}
}
