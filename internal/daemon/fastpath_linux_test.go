package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/eventloop"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// newFastPathRig is newRig for a test that is about the fast path.
func newFastPathRig(t testing.TB, changes ...func(*setup)) *rig {
	t.Helper()
	if os.Getenv(portable) != "" {
		t.Skip("without an event loop there is no fast path")
	}
	return newRig(t, changes...)
}

// places are where the connections are: on the fast path, and with a goroutine.
func (r *rig) places() (parked, running int) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	return r.server.parked, len(r.server.conns)
}

// placed waits until exactly so many connections are on the fast path, and have a
// goroutine.
func (r *rig) placed(parked, running int) {
	r.t.Helper()
	await.Eventually(r.t, fmt.Sprintf("%d connections are on the fast path and %d are not", parked, running), func() bool {
		p, g := r.places()
		return p == parked && g == running
	})
}

// unserved is a connection that the server does not have yet.
func unserved(t testing.TB) (client *peer, server *net.UnixConn) {
	t.Helper()
	c, server := socketpair(t, syscall.SOCK_STREAM)
	return newPeer(t, c), server
}

// take has the server serve it. Earlier events are known at the first look.
func (r *rig) take(server *net.UnixConn) {
	r.t.Helper()
	r.fastPath()
	r.server.take(context.Background(), server)
}

// fastPath waits until there is one.
func (r *rig) fastPath() {
	r.t.Helper()
	await.Eventually(r.t, "the fast path is open", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.fastPath != nil
	})
}

// A request that has to wait does so on the fast path, and later requests are answered behind it:
// with the same bytes, or while it waits.
func TestFastPathWaits(t *testing.T) {
	r := newFastPathRig(t).start()
	p := r.dial()
	p.ids(256)
	for _, ask := range []struct {
		method string
		params []any
		count  int
	}{
		{"NextID", nil, 1},
		{"NextIDs", []any{20}, 20},
		{"NextID", []any{patient()}, 1},
		{"NextIDs", []any{200, patient()}, 200},
		{"NextIDs", []any{2, options{"format": "string"}}, 2},
	} {
		p.send(slices.Concat(
			request(1, "Ping", []any{}), request(2, ask.method, slice(ask.params)), request(3, "NextID", []any{}), request(4, "Ping", []any{}),
		))
		if got := p.receive(); got.id != 1 || got.err != nil {
			t.Fatalf("what was ready waits too: %+v", got)
		}
		r.waiters(1)
		r.placed(1, 0)
		p.send(append(request(5, "Ping", []any{}), request(6, "NextID", []any{})...))
		r.clock.Advance(time.Millisecond)
		for id := range uint32(5) {
			if got := p.receive(); got.id != id+2 || got.err != nil {
				t.Fatalf("%s%v: %+v at the place of %d", ask.method, ask.params, got, id+2)
			}
		}
		r.placed(1, 0)
		p.ids(256 - ask.count - 2)
	}
}

// Requests that come together share the rest of the millisecond, in their order; the first one
// without an ID waits, and the others behind it.
func TestFastPathAnswersTogether(t *testing.T) {
	for _, burst := range []int{2, 3, maxTogether - 1, maxTogether, maxTogether + 1, 2*maxTogether + 3} {
		for _, left := range []int{1, 2, 5, maxTogether, 256} {
			r := newFastPathRig(t).start()
			p := r.dial()
			if left < 256 {
				p.ids(256 - left)
			}
			var sent []byte
			methods := map[uint32]string{}
			for id := range burst {
				method, params := "NextID", []any{}
				switch {
				case id%61 == 60:
					method = "Ping"
				case id%47 == 46: // not a plain one
					params = []any{options{"regular_only": true}}
				}
				methods[uint32(id)] = method
				sent = append(sent, request(id, method, params)...)
			}
			p.send(sent)
			if asked := burst - burst/61; asked > left {
				r.waiters(1)
				r.clock.Advance(time.Millisecond)
			}
			last := snowflake.ID(0)
			for want := range uint32(burst) {
				got := p.receive()
				if got.id != want || got.err != nil {
					t.Fatalf("%d of %d left: %+v at the place of %d", burst, left, got, want)
				}
				if methods[want] == "Ping" {
					continue
				}
				id, err := idOf(got.result)
				must.Succeed(t, err)
				if id <= last {
					t.Fatalf("%d of %d left: %d after %d", burst, left, id, last)
				}
				last = id
			}
			if n := r.value("kazahana_rpc_requests_total", "ok", "NextID"); n != float64(burst-burst/61) {
				t.Errorf("%v requests are counted, of %d", n, burst)
			}
			r.placed(1, 0)
		}
	}
}

// No ID embeds a time before its request, though the clock is read once for connections that are
// read one after the other.
func TestFastPathReadsTheClockBehindTheRequest(t *testing.T) {
	const step = 5 // ms
	r := newFastPathRig(t).start()
	peers := []*peer{r.dial(), r.dial()}
	turns := 0
	r.onFastPathAll(len(peers), func(p *parked) {
		for _, p := range peers {
			p.send(request(turns+1, "NextID", []any{}))
		}
		p.Ready(unix.EPOLLIN)
		if turns++; turns == 1 {
			r.clock.Advance(step * time.Millisecond)
		}
	})
	for _, p := range peers {
		for msgid := range uint32(2) {
			got := p.receive()
			id, err := idOf(got.result)
			if err != nil || got.err != nil || got.id != msgid+1 {
				t.Fatalf("%+v, %v", got, err)
			}
			if ms := snowflake.DefaultTimeline().UnixMS(id); ms != startMS+step {
				t.Errorf("request %d: its ID embeds %d, want %d", msgid+1, ms, startMS+step)
			}
		}
	}
}

// Requests of several connections that come together share the rest of the millisecond, in their
// order. Those without an ID wait.
func TestFastPathAnswersConnectionsTogether(t *testing.T) {
	const connections = maxRound + 3
	for _, left := range []int{0, 1, 2, maxRound, maxRound + 2, 256} {
		r := newFastPathRig(t).start()
		peers, order := make([]*peer, connections), []*peer{}
		byAccount := map[*account]*peer{}
		for i := range peers {
			peers[i] = r.dial()
			peers[i].alive()
			r.onFastPathAll(i+1, func(p *parked) {
				if byAccount[p.account] == nil {
					byAccount[p.account] = peers[i]
				}
			})
		}
		if left < 256 {
			peers[0].ids(256 - left)
		}
		before := r.value("kazahana_rpc_requests_total", "ok", "NextID")
		r.onFastPathAll(connections, func(p *parked) {
			one := byAccount[p.account]
			order = append(order, one)
			one.send(request(len(order), "NextID", []any{}))
			p.Ready(unix.EPOLLIN)
		})
		if waiting := connections - left; waiting > 0 {
			r.waiters(waiting)
			r.clock.Advance(time.Millisecond)
		}
		last := snowflake.ID(0)
		for i, p := range order {
			got := p.receive()
			id, err := idOf(got.result)
			if err != nil || got.err != nil || got.id != uint32(i+1) || id <= last {
				t.Fatalf("%d left: connection %d: %+v after %d, %v", left, i, got, last, err)
			}
			last = id
		}
		if n := r.value("kazahana_rpc_requests_total", "ok", "NextID") - before; n != connections {
			t.Errorf("%d left: %v requests are counted, of %d", left, n, connections)
		}
		r.placed(connections, 0)
	}
}

// A peer that hangs up while it waits is forgotten, whether it goes at once or stops sending
// first, and costs others none of the IDs it did not get yet.
func TestFastPathPeerHangsUpWhileItWaits(t *testing.T) {
	r := newFastPathRig(t).start()
	other := r.dial()
	now := 0
	for _, halfFirst := range []bool{false, true} {
		other.ids(200)
		p := r.dial()
		p.send(append(request(1, "NextIDs", []any{100, patient()}), request(2, "NextID", []any{})...))
		r.waiters(1)
		if halfFirst {
			_ = p.CloseWrite()
			other.alive()
			r.placed(2, 0)
		}
		_ = p.Close()
		r.open(1)
		r.clock.Advance(time.Millisecond)
		other.ids(256, options{"timeout_ms": 0})
		r.clock.Advance(time.Millisecond)
		if now += 200 + 56 + 256; r.issued("default") != uint64(now) {
			t.Errorf("%d IDs were made, want %d", r.issued("default"), now)
		}
	}
}

// And so is a peer that had gone before its request was even read.
func TestFastPathPeerIsGoneBeforeItWaits(t *testing.T) {
	for name, before := range map[string][]byte{"nothing to answer": nil, "an answer": request(1, "Ping", []any{})} {
		t.Run(name, func(t *testing.T) {
			r := newFastPathRig(t).start()
			other := r.dial()
			other.ids(256)
			client, server := unserved(t)
			client.send(append(slices.Clone(before), request(2, "NextID", []any{patient()})...))
			_ = client.Close()
			r.take(server)
			r.open(1)
			r.clock.Advance(time.Millisecond)
			other.ids(256, options{"timeout_ms": 0})
		})
	}
}

// Half-closed is not gone: the answers to all that was sent come, and then the
// end. Here the end of the stream comes with the requests, or while one waits.
func TestFastPathHalfClose(t *testing.T) {
	for _, requests := range []int{1, 3, 20_000} { // the last are more than one read
		r := newFastPathRig(t, ample).start()
		client, server := unserved(t)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for id := range requests {
				if _, err := client.Write(request(id, "NextID", []any{})); err != nil {
					t.Error(err)
				}
			}
			_ = client.CloseWrite()
		}()
		if requests < 10 {
			<-sent // the server sees all of it at once
		}
		r.take(server)
		client.answered(0, uint32(requests-1))
		client.ends()
		<-sent
		r.open(0)
	}
	for _, before := range []bool{true, false} {
		r := newFastPathRig(t).start()
		r.dial().ids(256)
		client, server := unserved(t)
		client.send(append(request(1, "NextID", []any{patient()}), request(2, "NextID", []any{})...))
		if before {
			_ = client.CloseWrite()
		}
		r.take(server)
		r.waiters(1)
		if !before {
			_ = client.CloseWrite()
		}
		r.placed(2, 0)
		r.clock.Advance(time.Millisecond)
		client.answered(1, 2)
		client.ends()
		r.open(1)
	}
}

// A batch that takes long to encode is no business of the fast path; a small one is.
func TestFastPathHeavyBatches(t *testing.T) {
	const small, large = "small", "large"
	for _, test := range []struct {
		what  string
		count int
		opts  options
	}{
		{small, maxFastPathBatch, options{}},
		{large, maxFastPathBatch + 1, options{}},
		{large, MaxBatch, options{}},
		{small, maxFastPathTexts, options{"format": "string"}},
		{large, maxFastPathTexts + 1, options{"format": "string"}},
		{small, maxFastPathTexts, options{"format": "external"}},
		{large, maxFastPathTexts + 1, options{"format": "external"}},
	} {
		t.Run(fmt.Sprint(test.count, test.opts), func(t *testing.T) {
			r := newFastPathRig(t).start()
			p := r.dial()
			p.ids(256)
			test.opts["timeout_ms"] = 3_600_000
			p.send(append(request(1, "NextIDs", []any{test.count, test.opts}), request(2, "Ping", []any{})...))
			r.waiters(1)
			if test.what == small {
				r.placed(1, 0)
			} else {
				r.placed(0, 1)
			}
			_ = p.Close()
			r.open(0)
		})
	}
}

// A peer that waits, and does not read earlier answers, waits elsewhere.
func TestFastPathPeerThatDoesNotReadAndWaits(t *testing.T) {
	r := newFastPathRig(t, func(s *setup) {
		s.terms.BitSeq, s.terms.BitID = 11, snowflake.ValueBits-snowflake.DefaultBitTS-11
		s.change(func(c *config.Service) { c.MaxThroughputPerMS = 2048 })
	}).start()
	client, server := unserved(t)
	must.Succeed(t, server.SetWriteBuffer(4<<10))
	client.send(slices.Concat(request(1, "NextIDs", []any{2048}), request(2, "NextID", []any{patient()}), request(3, "Ping", []any{})))
	r.take(server)
	r.placed(0, 1)
	if n := r.awaiting(); n != 1 {
		t.Errorf("%d requests wait", n)
	}
	r.clock.Advance(time.Millisecond)
	client.answered(1, 3)
	r.placed(1, 0)
	if n := r.awaiting(); n != 0 {
		t.Errorf("%d requests wait", n)
	}
	// And when its peer goes instead, nothing is left of it.
	client, server = unserved(t)
	must.Succeed(t, server.SetWriteBuffer(4<<10))
	client.send(slices.Concat(request(1, "NextIDs", []any{2047}), request(2, "NextID", []any{patient()})))
	r.take(server)
	r.placed(1, 1)
	_ = client.Close()
	r.open(1)
}

// Half a message is waited for elsewhere.
func TestFastPathHalfMessages(t *testing.T) {
	r := newFastPathRig(t).start()
	p := r.dial()
	message := request(2, "NextID", []any{options{"format": "string"}})
	for cut := 1; cut < len(message); cut++ {
		p.send(append(request(1, "Ping", []any{}), message[:cut]...))
		p.answered(1, 1)
		r.placed(0, 1)
		p.send(append(message[cut:len(message):len(message)], request(3, "NextID", []any{})...))
		for id := range uint32(2) {
			if got := p.receive(); got.id != id+2 || got.err != nil {
				t.Fatalf("cut at %d: %+v", cut, got)
			}
		}
		r.placed(1, 0)
	}
	// Its end does not come.
	p.send(message[:5])
	r.placed(0, 1)
	_ = p.CloseWrite()
	p.ends()
	r.open(0)
}

// At no moment a connection that moves is counted twice, or not at all.
func TestFastPathCountsOneThatMoves(t *testing.T) {
	r := newFastPathRig(t).start()
	p, server := unserved(t)
	r.fastPath()
	c := r.conn(server)
	r.server.mu.Lock()
	r.server.conns[c] = struct{}{}
	r.server.mu.Unlock()
	if !r.server.park(c) || r.server.connections() != 1 {
		t.Errorf("%d connections", r.server.connections())
	}
	p.alive()
	r.placed(1, 0)
}

// onFastPath calls f for the one connection that is on the fast path, on its thread.
func (r *rig) onFastPath(f func(*parked)) {
	r.t.Helper()
	r.onFastPathAll(1, f)
}

// onFastPathAll calls f for each of so many connections.
func (r *rig) onFastPathAll(connections int, f func(*parked)) {
	r.t.Helper()
	r.placed(connections, 0)
	l := r.server.fastPath.(*eventPath)
	done := make(chan struct{})
	l.loop.Post(func() {
		defer close(done)
		l.loop.Each(func(h eventloop.Handler) { f(h.(*parked)) })
	})
	<-done
}

// Once it is handed over, a connection is the goroutine's alone, with anything still to come for
// it on the fast path: its request's end, or its turn.
func TestFastPathForgetsWhatItHandsOver(t *testing.T) {
	r := newFastPathRig(t).start()
	p := r.dial()
	p.ids(256)
	p.send(append(request(1, "NextID", []any{patient()}), request(2, "Ping", []any{})...))
	r.waiters(1)
	r.onFastPath(func(p *parked) { p.leave(unfinished{input: p.rest, waits: p.wait}) })
	r.placed(0, 1)
	r.clock.Advance(time.Millisecond)
	p.answered(1, 2)
	p.alive()
	r.onFastPath(func(p *parked) {
		p.rest, p.more = request(3, "Ping", []any{}), true
		p.path.loop.Again(p.fd)
		p.leave(unfinished{input: p.rest})
	})
	p.answered(3, 3)
	p.alive()
	r.onFastPath(func(p *parked) {
		p.rest, p.more = request(4, "Ping", []any{}), true
		p.path.loop.Again(p.fd)
		p.end()
	})
	p.ends()
	r.dial().alive()
	r.placed(1, 0)
	if n := r.awaiting(); n != 0 {
		t.Errorf("%d requests wait", n)
	}
}

// A message that a read cuts is read on, and its connection stays on the fast path. A message
// that does not end makes it leave.
func TestFastPathReadsOn(t *testing.T) {
	r := newFastPathRig(t, ample).start()
	client := r.dial()
	client.alive()
	one := request(7, "NextID", []any{options{"regular_only": true}})
	sent := bytes.Repeat(one, 3*fastPathBuffer/len(one))
	if fastPathBuffer%len(one) == 0 {
		t.Fatal("a read cuts no message")
	}
	r.onFastPath(func(p *parked) {
		client.send(sent)
		cuts, turns, events := 0, 0, uint32(unix.EPOLLIN)
		for ; turns < 1000 && p.account != nil && (events != 0 || p.more); turns++ {
			if p.Ready(events); len(p.rest) > 0 {
				cuts++
			}
			events = 0
		}
		if p.account == nil || cuts == 0 || turns == 1000 {
			t.Errorf("after %d turns the connection is on the fast path: %t; reads that cut a message: %d", turns, p.account != nil, cuts)
		}
	})
	for range len(sent) / len(one) {
		if got := client.receive(); got.id != 7 || got.err != nil {
			t.Fatalf("%+v", got)
		}
	}
	r.placed(1, 0)
	long := request(8, "Ping", []any{make([]byte, fastPathBuffer)})
	for _, part := range []int{fastPathBuffer - 1, fastPathBuffer, fastPathBuffer + 1} {
		client.send(long[:part])
		r.placed(0, 1)
		client.send(long[part:])
		if got := client.receive(); got.id != 8 {
			t.Fatalf("%+v", got)
		}
		r.placed(1, 0)
	}
}

// What a read cuts, or the fast path does not answer, is not lost where the peer has stopped sending.
func TestEndBehindACut(t *testing.T) {
	r := newFastPathRig(t, ample).start()
	long := request(2, "Ping", []any{make([]byte, fastPathBuffer/2)})
	for _, sent := range [][]byte{request(1, "Status", []any{}), append(request(1, "Ping", []any{}), long[:len(long)-1]...)} {
		client, server := unserved(t)
		client.send(sent)
		_ = client.CloseWrite()
		r.take(server)
		client.answered(1, 1)
		client.ends()
	}
	r.placed(0, 0)
}

// records is a connection that shows the peer each write by itself.
func records(t *testing.T, r *rig) (client *net.UnixConn) {
	t.Helper()
	client, server := socketpair(t, syscall.SOCK_SEQPACKET)
	_ = client.SetDeadline(time.Now().Add(hang))
	r.take(server)
	return client
}

// What came together is answered together.
func TestFastPathAnswersABurstAtOnce(t *testing.T) {
	r := newFastPathRig(t).start()
	client := records(t, r)
	b := make([]byte, 2*fastPathBuffer)
	exchange := func(send []byte, answers int) {
		t.Helper()
		if send != nil {
			if _, err := client.Write(send); err != nil {
				t.Fatal(err)
			}
		}
		n, err := client.Read(b)
		must.Succeed(t, err)
		in := wire.NewInbox(wire.MaxMessage)
		defer in.Release()
		in.Preload(b[:n])
		got := 0
		for message, err := in.Next(); message != nil && err == nil; message, err = in.Next() {
			got++
		}
		if got != answers || in.Partial() {
			t.Errorf("a write of %d bytes holds %d answers, want %d", n, got, answers)
		}
	}
	mixture := func(n int) (all []byte) {
		for id := range n {
			switch id % 4 {
			case 0:
				all = append(all, request(id, "NextID", []any{})...)
			case 1:
				all = append(all, request(id, "Ping", []any{})...)
			case 2:
				all = append(all, request(id, "NextIDs", []any{2, options{"format": "string"}})...)
			case 3:
				all = append(all, request(id, "Nonsense", []any{})...)
			}
		}
		return all
	}
	exchange(mixture(1), 1)
	const burst = 100 // which is one read
	exchange(mixture(burst), burst)
	r.clock.Advance(time.Millisecond)
	exchange(request(0, "NextIDs", []any{256}), 1)
	// What waits divides it in two.
	exchange(slices.Concat(mixture(2)[len(request(0, "NextID", []any{})):], mixture(burst)), 1)
	r.waiters(1)
	r.clock.Advance(time.Millisecond)
	exchange(nil, burst)
	r.placed(1, 0)
}

// What waits to be written stays small, however much one burst asks for.
func TestFastPathWritesBeforeItHoldsMuch(t *testing.T) {
	const requests, count = 20, maxFastPathBatch
	r := newFastPathRig(t, ample).start()
	client := records(t, r)
	var sent []byte
	for id := range requests {
		sent = append(sent, request(id, "NextIDs", []any{count})...)
	}
	if _, err := client.Write(sent); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<20)
	for got := 0; got < requests*count*9; {
		n, err := client.Read(b)
		if err != nil {
			t.Fatalf("%v after %d bytes", err, got)
		}
		if n > wire.HighWater {
			t.Errorf("a write of %d bytes", n)
		}
		got += n
	}
}

// A connection costs no goroutine, and nothing is left of it.
func TestFastPathManyConnections(t *testing.T) {
	const connections = 1000
	r := newFastPathRig(t, ample).start()
	r.dial().alive()
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	var peers []*peer
	for range connections - 1 {
		p := r.dial()
		p.id()
		peers = append(peers, p)
	}
	r.placed(connections, 0)
	if n := runtime.NumGoroutine() - goroutines; n > 10 {
		t.Errorf("%d goroutines more for %d connections", n, len(peers))
	}
	// All at once, and each its own.
	for _, p := range peers {
		p.ask("NextID")
	}
	seen := map[snowflake.ID]bool{}
	for _, p := range peers {
		id, err := idOf(p.receive().result)
		if err != nil || seen[id] {
			t.Fatalf("%d, %v", id, err)
		}
		seen[id] = true
	}
	for _, p := range peers {
		_ = p.Close()
	}
	r.open(1)
	if n := descriptors(t); n != files {
		t.Errorf("%d descriptors, %d before", n, files)
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

// The counts are those of the requests, whichever way they were answered.
func TestFastPathCounts(t *testing.T) {
	r := newFastPathRig(t).start()
	p := r.dial()
	p.send(slices.Concat(request(1, "NextIDs", []any{250}), request(2, "NextID", []any{}), request(3, "Status", []any{}), request(4, "NextID", []any{})))
	for range 2 {
		p.receive()
	}
	var status map[string]any
	p.decode(p.receive().result, &status)
	if n, _ := asInt(status["requests_total"]); n != 2 {
		t.Errorf("Status tells of %d requests", n)
	}
	p.receive()
	p.ask("NextIDs", 5)
	r.waiters(1)
	r.clock.Advance(time.Millisecond)
	p.receive()
	p.ask("NextIDs", MaxBatch, options{"timeout_ms": 0})
	p.wantError(p.receive(), wire.CodeTimeout)
	p.alive()
	for labels, want := range map[[2]string]float64{
		{"ok", "NextID"}: 2, {"ok", "NextIDs"}: 2, {"ok", "Status"}: 1, {"TIMEOUT", "NextIDs"}: 1, {"ok", "Ping"}: 1,
	} {
		if got := r.value("kazahana_rpc_requests_total", labels[0], labels[1]); got != want {
			t.Errorf("%v: %v, want %v", labels, got, want)
		}
	}
	if n := r.value("kazahana_rpc_duration_seconds"); n != 7 {
		t.Errorf("%v durations", n)
	}
}

// The remains of one connection reach no other: neither its bytes, nor its answers, nor its place
// in the buffer that all share.
func TestFastPathConnectionsShareNothing(t *testing.T) {
	r := newFastPathRig(t).start()
	var peers [8]*peer
	for i := range peers {
		peers[i] = r.dial()
	}
	peers[0].ids(256)
	for round := range 20 {
		for i, p := range peers {
			base := 1000*i + 10*round
			p.send(slices.Concat(
				request(base, "NextID", []any{patient()}), request(base+1, "Ping", []any{}), request(base+2, "NextIDs", []any{2, options{"format": "external"}}),
			))
		}
		r.waiters(len(peers))
		r.clock.Advance(time.Millisecond)
		for i, p := range peers {
			for n := range 3 {
				if got := p.receive(); got.id != uint32(1000*i+10*round+n) || got.err != nil {
					t.Fatalf("round %d, connection %d: answer %d is %d, %v", round, i, n, got.id, got.err)
				}
			}
		}
		if n := 256 - 3*len(peers); n > 0 {
			peers[round%len(peers)].ids(n)
		}
	}
}

// And a connection that leaves with answers unsent takes them all along.
func TestFastPathTakesAnswersAlong(t *testing.T) {
	r := newFastPathRig(t, ample).start()
	a, b := r.dial(), r.dial()
	for round := range 50 {
		a.send(append(request(2*round, "NextID", []any{}), request(2*round+1, "NextIDs", []any{5000})...))
		b.send(request(round, "Ping", []any{}))
		a.answered(uint32(2*round), uint32(2*round+1))
		if got := b.receive(); got.id != uint32(round) || binary.Size(got.result) != 5 {
			t.Fatalf("%+v", got)
		}
	}
}
