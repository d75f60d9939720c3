//go:build go1.25

package kazahana

import (
	"context"
	"net"
	"testing"
)

// maxAllocs is the most that a call may allocate: both are the context's, if it can be canceled.
const maxAllocs = 2

// fixed answers each request for an ID without allocating.
func fixed(conn net.Conn) {
	request, answer := make([]byte, 4096), []byte{0x94, 1, 0, 0xc0, 0xcf, 1, 2, 3, 4, 5, 6, 7, 8}
	for {
		if _, err := conn.Read(request); err != nil {
			return
		}
		answer[2] = request[2] // the msgid
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// fixedSocket is the socket of a daemon that answers as fixed. The deadlines of pipes allocate.
func fixedSocket(t *testing.T) Option {
	listener, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				fixed(conn)
			}()
		}
	}()
	return WithSocket(listener.Addr().String())
}

// A call allocates little, and an ID from memory nothing.
func TestAllocations(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := fixedSocket(t)
	for name, test := range map[string]struct {
		client *Client
		ctx    context.Context
		most   float64
	}{
		"alone":               {newClient(t, server), context.Background(), 0},
		"with a context":      {newClient(t, server), ctx, maxAllocs},
		"with a service, too": {newClient(t, server, WithService("orders")), ctx, maxAllocs},
	} {
		var id ID
		var err error
		if got := testing.AllocsPerRun(1000, func() { id, err = test.client.NextID(test.ctx) }); err != nil || id != 0x0102030405060708 || got > test.most {
			t.Errorf("%s: a call makes %v allocations (%d, %v)", name, got, id, err)
		} else {
			t.Logf("%s: %v allocations", name, got)
		}
	}
	p := newAhead(MaxBatch, DefaultMaxAge, newSource(0).fetch)
	p.now.Store(&batch{ids: make([]ID, MaxBatch), until: 1 << 62, wallUntil: 1 << 62})
	if got := testing.AllocsPerRun(1000, func() { _, _ = p.get(ctx) }); got != 0 {
		t.Errorf("an ID from memory makes %v allocations", got)
	}
}
