package daemon

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// raws opens connections that cost this process nothing but descriptors.
func (r *rig) raws(n int) (fds []int) {
	r.t.Helper()
	for range n {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: r.path})
		}
		must.Succeed(r.t, err)
		r.t.Cleanup(func() { _ = unix.Close(fd) })
		fds = append(fds, fd)
	}
	return fds
}

// What a connection costs at most, beside the kernel's buffers, is what docs/operations.md says: one
// with a goroutine, and with the largest buffers that are not counted.
func TestConnectionsCostLittle(t *testing.T) {
	ring.All(t)
	if ring.Race {
		t.Skip("the race detector takes several times the memory")
	}
	const connections = 2000
	r := newRig(t, func(s *setup) { s.MaxConnections, s.MemoryLimit = connections, 1<<30 }).start()
	half := halfMessage()
	memory := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before := memory()
	fds := r.raws(connections)
	for _, part := range [][]byte{slices.Concat(slices.Repeat(request(1, "Ping", []any{}), 100), half[:1]), half[1:4000]} {
		for _, fd := range fds {
			if _, err := unix.Write(fd, part); err != nil {
				t.Fatal(err)
			}
		}
	}
	await.Eventually(t, "each has a goroutine", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return len(r.server.conns) == connections
	})
	each := (memory() - before) / connections
	t.Logf("%d bytes", each)
	const most = 20 << 10
	if each > most {
		t.Errorf("a connection costs %d bytes, more than %d", each, most)
	}
}
