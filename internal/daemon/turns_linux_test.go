package daemon

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// The fast path waits for no lock: others are served while connections that leave it, or end,
// wait for one.
func TestFastPathWaitsForNoLock(t *testing.T) {
	r := newFastPathRig(t, ample).start()
	other := r.dial()
	other.alive()
	half, heavy, gone := r.dial(), r.dial(), r.dial()
	for _, p := range []*peer{half, heavy, gone} {
		p.alive()
	}
	r.placed(4, 0)
	r.server.mu.Lock()
	r.server.bounds.mu.Lock()
	half.send(request(1, "NextID", []any{})[:5])
	heavy.ask("Status")
	_ = gone.Close()
	for range 100 {
		other.id()
	}
	r.server.bounds.mu.Unlock()
	r.server.mu.Unlock()
	heavy.receive()
	half.send(request(1, "NextID", []any{})[5:])
	half.receive()
	r.placed(3, 0)
}

// unanswered is how many requests of this size the connection still has, read or not.
func (p *parked) unanswered(t *testing.T, size int) int {
	t.Helper()
	unread, err := unix.IoctlGetInt(p.fd, unix.TIOCINQ)
	must.Succeed(t, err)
	return (unread + len(p.rest)) / size
}

// A turn answers the requests of one read, and others have theirs before the next one.
func TestATurnIsOneRead(t *testing.T) {
	r := newFastPathRig(t, ample).start()
	client, server := unserved(t)
	r.take(server)
	client.alive()
	one := request(1, "NextID", []any{})
	const sent = 1000
	r.onFastPath(func(p *parked) {
		client.send(bytes.Repeat(one, sent))
		p.Ready(unix.EPOLLIN)
		if n := sent - p.unanswered(t, len(one)); p.account == nil || n != fastPathBuffer/len(one) {
			t.Errorf("%d are answered in a turn, want %d", n, fastPathBuffer/len(one))
		}
	})
	for range sent {
		client.receive()
	}
}
