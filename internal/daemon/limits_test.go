package daemon

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

func TestMaxInFlight(t *testing.T) {
	r := newRig(t, func(s *setup) { s.MaxInFlight = 2 }).start()
	r.dial().ids(256)
	var waiting []*peer
	for _, count := range []int{1, maxFastPathBatch + 1} { // on the fast path, and with a goroutine
		p := r.dial()
		p.ask("NextIDs", count, patient())
		waiting = append(waiting, p)
	}
	r.waiters(2)
	p := r.dial()
	p.fails(wire.CodeOverloaded, "NextIDs", MaxBatch)
	if got := p.fails(wire.CodeOverloaded, "NextID"); !strings.Contains(got.Message, "max_in_flight") {
		t.Errorf("%v does not say what to change", got)
	}
	p.fails(wire.CodeOverloaded, "NextIDs", 3)
	p.alive() // and other methods are no part of the limit
	if n, _ := asInt(p.table("Status")["in_flight"]); n != 2 {
		t.Errorf("in flight: %d", n)
	}
	_ = waiting[1].Close()
	r.waiters(1)
	r.clock.Advance(time.Millisecond)
	waiting[0].succeeds()
	r.clock.Advance(time.Millisecond)
	p.ids(256, options{"timeout_ms": 0}) // no request is left in the queue
}

func TestMaxConnections(t *testing.T) {
	r := newRig(t, func(s *setup) { s.MaxConnections = 2 }).start()
	a, b := r.dial(), r.dial()
	a.alive()
	b.alive()
	for _, method := range []string{"NextID", "Ping", "Nonsense"} {
		p := r.dial()
		p.send(pack([]any{2, "event", []any{}})) // gets no answer
		if got := p.fails(wire.CodeOverloaded, method); !strings.Contains(got.Message, "max_connections") {
			t.Errorf("%v does not say what to change", got)
		}
		p.ends()
	}
	if n, _ := asInt(a.table("Status")["connections"]); n != 2 {
		t.Errorf("connections: %d", n)
	}
	_ = b.Close()
	await.Eventually(t, "a place is free", func() bool { return r.server.connections() == 1 })
	r.dial().alive()
	a.alive()
}

// Peers that are turned away and do not ask have a limit of their own.
func TestRefusalsAreLimited(t *testing.T) {
	r := newRig(t, func(s *setup) { s.MaxConnections, s.patience.refuse = 1, hang }).start()
	r.dial().alive()
	var heard []*peer
	for range maxRefusals {
		heard = append(heard, r.dial())
	}
	await.Eventually(t, "all of them are heard out", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return len(r.server.refused) == maxRefusals
	})
	r.dial().ends()
	for _, p := range heard {
		p.fails(wire.CodeOverloaded, "Ping")
		p.ends()
	}
}

// A peer that asks nothing is closed in the end, and a peer that talks nonsense at once.
func TestRefusedPeersThatDoNotAsk(t *testing.T) {
	r := newRig(t, func(s *setup) { s.MaxConnections, s.patience.refuse = 0, time.Millisecond }).start()
	r.dial().ends()
	r = newRig(t, func(s *setup) { s.MaxConnections, s.patience.refuse = 0, hang }).start()
	p := r.dial()
	p.send([]byte("GET / HTTP/1.1\r\n\r\n"))
	if _, err := p.read(); err == nil {
		t.Error("an answer")
	}
}

// A peer that tries again and again does not fill the log.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	r := newRig(t)
	for range 1000 {
		r.server.refusalLog.Warn("refused")
	}
	if n := r.logs.FilterMessage("refused").Len(); n < 1 || n > 100 {
		t.Errorf("%d lines", n)
	}
}

func TestPermission(t *testing.T) {
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	for _, test := range []struct {
		uids, gids []uint32
		allowed    bool
	}{
		{nil, nil, true},
		{[]uint32{uid}, nil, true},
		{[]uint32{uid + 1, uid}, nil, true},
		{nil, []uint32{gid}, true},
		{[]uint32{uid + 1}, []uint32{gid}, true},
		{[]uint32{uid}, []uint32{gid + 1}, true},
		{[]uint32{uid + 1}, nil, false},
		{nil, []uint32{gid + 1}, false},
		{[]uint32{uid + 1}, []uint32{gid + 1}, false},
	} {
		r := newRig(t, func(s *setup) { s.AllowUIDs, s.AllowGIDs = test.uids, test.gids }).start()
		p := r.dial()
		if test.allowed {
			p.id()
			continue
		}
		got := p.fails(wire.CodePermissionDenied, "NextID")
		if !strings.Contains(got.Message, "allow_uids") {
			t.Errorf("%v does not say what to change", got)
		}
		p.ends()
		if n := r.logs.FilterMessage("connection refused: its peer is not allowed").Len(); n != 1 {
			t.Errorf("logged %d times", n)
		}
		if n := r.server.connections(); n != 0 {
			t.Errorf("%d connections", n)
		}
	}
}

// A peer that asks for batches or for lists, and never reads, is closed in time.
func TestPeerThatNeverReadsIsCutOff(t *testing.T) {
	if defaultPatience.write != 30*time.Second {
		t.Errorf("a peer may take %v to read", defaultPatience.write)
	}
	r, _ := withLocks(t, wide, func(s *setup) { s.source, s.patience.write = clock.System{}, 500*time.Millisecond })
	other := r.dial()
	for i := range lock.MaxList {
		other.result("Lock.Acquire", fmt.Sprintf("%0*d", lock.MaxKey, i), options{"ttl_ms": 3_600_000})
	}
	for _, message := range [][]byte{request(1, "NextIDs", []any{MaxBatch}), request(1, "Lock.List", []any{})} {
		p := r.dial()
		p.send(bytes.Repeat(message, 1000))
		await.Eventually(t, "it is cut off", func() bool { return r.server.connections() == 1 })
		_ = p.Close()
	}
	other.id()
}

// A message that begins and does not end holds its connection for a while, an idle connection for
// ever, and a connection with messages that end as long as it likes.
func TestMessageThatDoesNotEnd(t *testing.T) {
	r := newRig(t, func(s *setup) { s.patience.message = time.Second }).start()
	idle, whole, half := r.dial(), r.dial(), r.dial()
	idle.id()
	whole.id()
	message := request(7, "NextID", []any{})
	half.send(message[:len(message)-1])
	await.Eventually(t, "the half message is given up", func() bool { return r.server.connections() == 2 })
	idle.id()
	// Its end comes in time, and the deadline does not outlive it.
	whole.send(message[:3])
	whole.send(message[3:])
	if reply := whole.receive(); reply.err != nil {
		t.Errorf("a message in two pieces: %v", reply.err)
	}
	other := r.dial()
	other.send(message[:3])
	await.Eventually(t, "another one is given up", func() bool { return r.server.connections() == 2 })
	whole.id()
}

// deadlines counts the ones set for reading.
type deadlines struct {
	stream
	set atomic.Int64
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		d.set.Add(1)
	}
	return d.stream.SetReadDeadline(t)
}

// Each message has its own time to end, also where the next one has begun by then.
func TestMessagesThatOverlap(t *testing.T) {
	r := newRig(t)
	client, server := socketpair(t, syscall.SOCK_STREAM)
	p, d := newPeer(t, client), &deadlines{stream: server}
	over := make(chan struct{})
	go func() {
		defer close(over)
		r.conn(d).serve(t.Context())
	}()
	message := request(7, "Ping", []any{})
	p.send(message[:3])
	const pieces = 5
	for range pieces {
		p.send(append(bytes.Clone(message[3:]), message[:3]...))
		p.receive()
	}
	_ = client.Close()
	<-over
	if n := d.set.Load(); n < pieces {
		t.Errorf("%d deadlines were set for %d messages", n, pieces)
	}
}

// issued is how many IDs the service has made.
func (r *rig) issued(service string) uint64 {
	stats := r.services[service].Generator().Stats()
	return stats.Issued[0] + stats.Issued[1] + stats.Issued[2]
}

// A peer that is gone gets no further IDs made, however many it has asked for.
func TestPeerThatIsGone(t *testing.T) {
	r := newRig(t, wide, func(s *setup) { s.source = clock.System{} })
	client, server := socketpair(t, syscall.SOCK_STREAM)
	if _, err := client.Write(bytes.Repeat(request(1, "NextIDs", []any{MaxBatch}), 1000)); err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	r.conn(server).serve(t.Context())
	if n := r.issued("default"); n != MaxBatch {
		t.Errorf("%d IDs were made for a peer that is gone; its first request may have cost %d", n, MaxBatch)
	}
}

// A peer that is gone while its request waits leaves its place to others; a peer that only
// stopped sending still gets its answer.
func TestPeerThatHangsUpWhileItWaits(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.MaxInFlight = 3
		s.change(func(c *config.Service) { c.MaxBackward = -1 })
	}).start()
	r.dial().ids(256)
	r.clock.Jump(-time.Hour)
	stays, half := r.dial(), r.dial()
	for _, p := range []*peer{stays, half} {
		p.ask("NextID", patient())
	}
	must.Succeed(t, half.CloseWrite())
	r.waiters(2)
	for range 5 {
		p := r.dial()
		p.ask("NextID", patient())
		r.waiters(3)
		_ = p.Close()
		await.Eventually(t, "its place is free", func() bool { return r.server.bounds.inFlight() == 2 })
	}
	r.waiters(2)
	r.clock.Jump(time.Hour + time.Millisecond)
	for _, p := range []*peer{stays, half} {
		p.succeeds()
	}
	half.ends()
	stays.alive()
	if n := r.logs.FilterLevelExact(zapcore.ErrorLevel).Len(); n != 0 {
		t.Errorf("%d errors logged: %v", n, r.logs.All())
	}
	await.Eventually(t, "they are forgotten", func() bool { return r.server.connections() <= 2 })
}
