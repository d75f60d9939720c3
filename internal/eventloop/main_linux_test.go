package eventloop

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	tests "github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { tests.Main(m) }

// start runs a loop until the test ends, or stop is called.
func start(t *testing.T) (l *Loop, stop func()) {
	t.Helper()
	l, err := New(func() {})
	must.Succeed(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run()
	}()
	stop = func() {
		l.Post(l.Stop)
		await(t, ended)
	}
	t.Cleanup(stop)
	return l, stop
}

func await(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(tests.Patience):
		t.Fatalf("it never came about:\n%s", tests.Stacks())
	}
}

// on has the loop call f, and waits for it.
func on(t *testing.T, l *Loop, f func()) {
	t.Helper()
	done := make(chan struct{})
	if !l.Post(func() {
		defer close(done)
		f()
	}) {
		t.Fatal("the loop has ended")
	}
	await(t, done)
}

// settle returns when the loop has told of all that was there to be told of.
func settle(t *testing.T, l *Loop) {
	t.Helper()
	for range 3 {
		on(t, l, func() {})
	}
}

// handler is a Handler that is a function.
type handler func(events uint32)

func (h handler) Ready(events uint32) { h(events) }

// socketpair is closed when the test ends, but for ends that were closed before.
func socketpair(t *testing.T) (here, there int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must.Succeed(t, err)
	t.Cleanup(func() {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
	})
	return fds[0], fds[1]
}

func write(t *testing.T, fd int, text string) {
	t.Helper()
	if n, err := unix.Write(fd, []byte(text)); n != len(text) || err != nil {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
}

// drain reads all that is there.
func drain(fd int) (text string) {
	var b [64]byte
	for {
		n, errno := Receive(fd, b[:])
		if n <= 0 || errno != 0 {
			return text
		}
		text += string(b[:n])
	}
}

// descriptors are how many this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(names)
}
