package daemon

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/eventloop"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
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

// Those who leave the fast path while nobody sees to them hold little: others of their users are not
// read from until then, and may leave meanwhile.
func TestDeparturesAreBounded(t *testing.T) {
	const half = fastPathBuffer - 100
	const connections = 2 * maxDeparting / (departureSize + half)
	r := newFastPathRig(t).start()
	message := request(1, strings.Repeat("x", wire.MaxMessage/2), []any{})[:half]
	var peers []*peer
	for range connections {
		p := r.dial()
		p.alive()
		peers = append(peers, p)
	}
	r.placed(connections, 0)
	other := r.parkAs(4711)
	l := r.server.fastPath.(*eventPath)
	r.server.mu.Lock() // which the handoff needs
	for _, p := range peers {
		p.send(message)
	}
	await.Eventually(t, "all have left or have to wait", func() bool {
		counted := make(chan int)
		l.loop.Post(func() {
			left := connections + 1 // the other user stays
			l.loop.Each(func(eventloop.Handler) { left-- })
			counted <- left + l.waiting()
		})
		return <-counted == connections
	})
	if n := l.handoff.held.Load(); n < maxDeparting || n > maxDeparting+departureSize+fastPathBuffer {
		t.Errorf("those who leave hold %d bytes", n)
	}
	other.id()
	l.loop.Post(func() {
		for _, turns := range l.putOff {
			turns[0].evicted()
		}
	})
	r.server.mu.Unlock()
	r.placed(1, connections)
	await.Eventually(t, "they hold nothing", func() bool { return l.handoff.held.Load() == 0 })
}

// waiting is how many turns wait for the handoff.
func (l *eventPath) waiting() (n int) {
	for _, turns := range l.putOff {
		n += len(turns)
	}
	return n
}

// A user goes on once its own connections have been seen to, however many others leave.
func TestUsersGoOnOnceSeenTo(t *testing.T) {
	r := newFastPathRig(t, ample).start()
	leaves, stays := r.dial(), r.dial()
	leaves.alive()
	stays.alive()
	r.placed(2, 0)
	l := r.server.fastPath.(*eventPath)
	l.handoff.held.Add(maxDeparting + 1) // by others
	defer l.handoff.held.Add(-maxDeparting - 1)
	r.server.mu.Lock() // which the handoff needs
	leaves.send(request(1, "NextID", []any{})[:5])
	await.Eventually(t, "one leaves", func() bool { return l.handoff.held.Load() > maxDeparting+1 })
	stays.send(request(1, "NextID", []any{}))
	l.awaitWaiting(t, 1)
	r.server.mu.Unlock()
	stays.receive()
}

// Beyond the bound of all who leave, users wait who have nothing to do with it.
func TestDeparturesOfAllAreBounded(t *testing.T) {
	r := newFastPathRig(t, ample).start()
	leaves := r.dial()
	leaves.alive()
	r.placed(1, 0)
	other := r.parkAs(4711)
	l := r.server.fastPath.(*eventPath)
	l.handoff.held.Add(maxDepartingOfAll)
	defer l.handoff.held.Add(-maxDepartingOfAll)
	r.server.mu.Lock() // which the handoff needs
	leaves.send(request(1, "NextID", []any{})[:5])
	await.Eventually(t, "one leaves", func() bool { return l.handoff.held.Load() > maxDepartingOfAll })
	other.send(request(1, "NextID", []any{}))
	l.awaitWaiting(t, 1)
	r.server.mu.Unlock()
	other.receive()
}

// awaitWaiting returns when so many turns wait for the handoff.
func (l *eventPath) awaitWaiting(t *testing.T, turns int) {
	t.Helper()
	await.Eventually(t, "turns wait", func() bool {
		counted := make(chan int)
		l.loop.Post(func() { counted <- l.waiting() })
		return <-counted == turns
	})
}

// What users get on the fast path is shared among them, and not among their connections.
func TestFastPathSharesAreOfUsers(t *testing.T) {
	r := newFastPathRig(t, ample).start()
	a, b := r.dial(), r.dial()
	a.alive()
	b.alive()
	shares := map[*share]bool{}
	r.onFastPathAll(2, func(p *parked) { shares[p.turn.Share] = true })
	if len(shares) != 1 || !shares[&r.user().share] {
		t.Errorf("two connections of one user have %d shares", len(shares))
	}
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

// Answers cost their user time on the fast path, also those that it could not send, or that left
// with their connection.
func TestFastPathAnswersAreSpent(t *testing.T) {
	const answers = 3
	ids := bytes.Repeat(request(1, "NextIDs", []any{maxFastPathBatch}), answers)
	for name, test := range map[string]struct {
		send []byte
		full bool // the peer does not read
	}{
		"sent":          {send: ids},
		"not sent":      {send: ids, full: true},
		"leaves behind": {send: append(bytes.Clone(ids), request(2, "Status", []any{})[:5]...)},
	} {
		r := newFastPathRig(t, ample).start()
		client, server := unserved(t)
		if test.full {
			must.Succeed(t, server.SetWriteBuffer(4<<10))
		}
		r.take(server)
		client.alive()
		r.onFastPath(func(p *parked) {
			if _, err := client.Write(test.send); err != nil {
				t.Error(err)
			}
			before := p.path.loop.Spent()
			p.Ready(unix.EPOLLIN)
			p.Ready(0)
			if n := p.path.loop.Spent() - before; n < maxFastPathBatch*9 || n > answers*maxFastPathBatch*10+fastPathBuffer {
				t.Errorf("%s: %d are spent", name, n)
			}
		})
	}
}

// unanswered is how many requests of this size the connection still has, read or not.
func (p *parked) unanswered(t *testing.T, size int) int {
	t.Helper()
	unread, err := unix.IoctlGetInt(p.fd, unix.TIOCINQ)
	must.Succeed(t, err)
	return (unread + len(p.rest)) / size
}

// A turn answers the plain requests of one read. Long answers end it before.
func TestTurnsOfPlainRequests(t *testing.T) {
	one := request(1, "NextID", []any{})
	for _, test := range []struct {
		request []byte
		sent    int
		want    int // answers of a turn
	}{
		{one, 600, fastPathBuffer / len(one)},
		{request(1, "NextIDs", []any{maxFastPathBatch}), 10, 2}, // the first is sent when there is another one
	} {
		r := newFastPathRig(t, ample).start()
		client, server := unserved(t)
		must.Succeed(t, server.SetWriteBuffer(1<<20))
		r.take(server)
		client.alive()
		r.onFastPath(func(p *parked) {
			client.send(bytes.Repeat(test.request, test.sent))
			p.Ready(unix.EPOLLIN)
			p.Ready(0)
			if n := test.sent - p.unanswered(t, len(test.request)); p.account == nil || n != test.want {
				t.Errorf("%q: %d are answered in a turn, want %d", test.request, n, test.want)
			}
		})
		for range test.sent {
			client.receive()
		}
	}
}

// Requests that take time end a turn, and are spent.
func TestDearRequestsEndATurn(t *testing.T) {
	r := newFastPathRig(t, ample)
	r.with("Dear", func(_ *Server, _ context.Context, d *responder) error {
		time.Sleep(dearMost * byteTime)
		d.out.ReplyUint64(d.req.ID, 0)
		return nil
	})
	r.start()
	client := r.dial()
	client.alive()
	dear := request(1, "Dear", []any{})
	const sent, want = 20, fastPathTurn/dearMost + 1
	r.onFastPath(func(p *parked) {
		client.send(bytes.Repeat(dear, sent))
		before := p.path.loop.Spent()
		p.Ready(unix.EPOLLIN)
		p.Ready(0)
		if answered := sent - p.unanswered(t, len(dear)); answered != want && answered != want-1 {
			t.Errorf("%d requests are answered in a turn", answered)
		}
		if n := p.path.loop.Spent() - before; n < fastPathTurn {
			t.Errorf("%d are spent", n)
		}
	})
	for range sent {
		client.receive()
	}
	client.alive()
	for took, want := range map[time.Duration]int{0: dearLeast, 500 * byteTime: 500, time.Second: dearMost} {
		if got := dearCost(took); got != want {
			t.Errorf("%s cost %d, want %d", took, got, want)
		}
	}
}
