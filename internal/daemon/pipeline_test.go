package daemon

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// counted counts what a connection writes.
type counted struct {
	*net.UnixConn
	writes atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.UnixConn.Write(b)
}

// serveBytes has a server answer bytes that are there before it begins to read, and returns a
// peer that sees the answers and the connection's writes.
func serveBytes(t *testing.T, r *rig, sent []byte) (*peer, *counted) {
	t.Helper()
	client, server := socketpair(t, syscall.SOCK_STREAM)
	if _, err := client.Write(sent); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, client.CloseWrite())
	nc := &counted{UnixConn: server}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.conn(nc).serve(t.Context())
	}()
	t.Cleanup(func() {
		_ = client.Close()
		<-done
	})
	return newPeer(t, client), nc
}

func TestPipelining(t *testing.T) {
	const n = 1000
	r := newRig(t, wide)
	var sent []byte
	for i := range n {
		sent = append(sent, request(i, "NextID", []any{})...)
	}
	p, nc := serveBytes(t, r, sent)
	for i := range n {
		got := p.receive()
		id, err := idOf(got.result)
		if err != nil || got.id != uint32(i) || id != nth(int64(i)) {
			t.Fatalf("answer %d has msgid %d and ID %d, %v", i, got.id, id, err)
		}
	}
	p.ends()
	// One for each read, which double until they are large.
	if writes := nc.writes.Load(); writes > 5 {
		t.Errorf("%d writes for %d answers", writes, n)
	} else {
		t.Logf("%d writes for %d answers", writes, n)
	}
}

// Answers that are ready go out before the daemon waits for something that may
// take long.
func TestReadyAnswersDoNotWait(t *testing.T) {
	for _, test := range []struct {
		what   string
		method string
		params []any
		before func(r *rig, p *peer)
		after  func(r *rig)
	}{
		{"clock", "NextID", []any{}, func(r *rig, p *peer) {
			p.ids(256)
			r.clock.Jump(-3 * time.Second)
		}, func(r *rig) { r.clock.Jump(3*time.Second + time.Millisecond) }},
		{"clock behind others", "NextID", []any{}, func(r *rig, p *peer) {
			p.ids(256)
			r.clock.Jump(-3 * time.Second)
			r.dial().ask("NextID")
			r.waiters(1)
		}, func(r *rig) { r.clock.Jump(3*time.Second + time.Millisecond) }},
		{"a batch", "NextIDs", []any{3}, func(r *rig, p *peer) {
			p.ids(256)
			r.clock.Jump(-3 * time.Second)
		}, func(r *rig) { r.clock.Jump(3*time.Second + time.Millisecond) }},
		{"lease", "NextID", []any{}, func(*rig, *peer) {}, func(r *rig) { r.step() }},
	} {
		t.Run(test.what, func(t *testing.T) {
			r := newRig(t, func(s *setup) { s.early = test.what == "lease" }).start()
			p := r.dial()
			test.before(r, p)
			p.send(append(request(1, "Ping", []any{}), request(2, test.method, test.params)...))
			p.answered(1, 1)
			p.send(request(3, "Ping", []any{}))
			test.after(r)
			p.answered(2, 3)
		})
	}
}

// A peer gets its answers and nothing else.
func TestNothingUnasked(t *testing.T) {
	r := newRig(t, func(s *setup) { s.change(func(c *config.Service) { c.MaxBackward = 0 }) }).start()
	p := r.dial()
	var sent []byte
	for _, message := range []any{
		[]any{2, "NextID", []any{}}, []any{2, "nvim_error_event", []any{0, "x"}}, []any{2, "", options{}}, []any{2, "Ping", nil},
		[]any{1, 7, nil, 42}, []any{1, 0, []any{0, "no"}, nil}, []any{1, 9, options{"a": options{}}, []any{}},
		[]any{0, 1, "Ping", []any{}},
		[]any{2, "NextIDs", []any{65_536}}, []any{1, 1, nil, nil},
	} {
		sent = append(sent, pack(message)...)
	}
	p.send(sent)
	must.Succeed(t, p.CloseWrite())
	got, err := io.ReadAll(p)
	if want := pack([]any{1, 1, nil, "pong"}); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the daemon sent %x, %v, want %x", got, err, want)
	}
	if n := r.issued("default"); n != 0 {
		t.Errorf("notifications made %d IDs", n)
	}
	// A peer that connects and says nothing hears nothing, in all cases.
	idle := r.dial()
	idle.alive()
	r.clock.Jump(-time.Hour)
	r.step()
	r.clock.Jump(time.Hour)
	idle.alive()
	_ = idle.CloseWrite()
	idle.ends()
}
