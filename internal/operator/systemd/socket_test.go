package systemd

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

// TestListenerCountsTheLoopsTurns: a loop that waits turns when it is prodded,
// as often as it is, and a loop that does something else does not.
func TestListenerCountsTheLoopsTurns(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer inner.Close()
	l := NewListener(inner)
	accepted, release, ended := make(chan net.Conn), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
			<-release // the loop is stuck
			_ = c.Close()
		}
	}()
	for range 20 {
		before := l.Turns()
		await.Eventually(t, "the loop turns", func() bool { l.Prod(); return l.Turns() > before })
	}
	out, err := net.Dial("tcp", inner.Addr().String())
	must.Succeed(t, err)
	defer out.Close()
	in := <-accepted
	if _, is := in.(*net.TCPConn); !is { // a limit sets its buffers
		t.Errorf("the connection is a %T", in)
	}
	before := l.Turns()
	for range 20 {
		l.Prod()
		time.Sleep(time.Millisecond)
	}
	if n := l.Turns(); n != before {
		t.Errorf("a stuck loop took %d turns", n-before)
	}
	close(release)
	await.Eventually(t, "it goes on", func() bool { l.Prod(); return l.Turns() > before })
	_ = l.Close()
	<-ended
}
