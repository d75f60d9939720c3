package daemon

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/await"
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
	r.server.budget.mu.Lock()
	half.send(request(1, "NextID", []any{})[:5])
	heavy.ask("Status")
	_ = gone.Close()
	for range 100 {
		other.id()
	}
	r.server.budget.mu.Unlock()
	r.server.mu.Unlock()
	heavy.receive()
	half.send(request(1, "NextID", []any{})[5:])
	half.receive()
	r.placed(3, 0)
}

// Who waits for a peer has no place: neither for the rest of a message, nor for answers to
// be read, nor for IDs.
func TestThoseWhoWaitHaveNoPlace(t *testing.T) {
	const kinds = 3
	many := maxRunning + maxUserRunning + 1
	r := newFastPathRig(t, func(s *setup) { s.MaxConnections, s.MaxInFlight = kinds*many+2, many }).start()
	r.dial().ids(256)
	for range many {
		half := r.dial()
		half.send(request(1, "NextID", []any{})[:5])
		unread, server := unserved(t)
		must.Succeed(t, server.SetWriteBuffer(4<<10))
		unread.send(bytes.Repeat(request(1, "Status", []any{}), 100))
		r.take(server)
		waits := r.dial()
		waits.send(append(request(1, "NextIDs", []any{maxFastPathBatch + 1, patient()}), request(2, "Ping", []any{})...))
	}
	r.waiters(many)
	other := r.dial()
	other.ask("Status") // which is not for the fast path
	other.succeeds()
	await.Eventually(t, "nobody has a place", func() bool { return len(r.user().running) == 0 && len(r.server.budget.running) == 0 })
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
