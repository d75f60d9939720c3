//go:build go1.25

package kazahana

import (
	"context"
	"net"
	"testing"
)

// maxAllocs is the most that a call may allocate, with all goroutines of the client.
const maxAllocs = 4

// fixed answers each request for an ID without allocating. Its answers have the msgid of the
// request; it does not read the request's last bytes.
func fixed(conn net.Conn) {
	request, answer := make([]byte, 4096), []byte{0x94, 1, 0xce, 0, 0, 0, 0, 0xc0, 0xcf, 1, 2, 3, 4, 5, 6, 7, 8}
	for {
		if _, err := conn.Read(request); err != nil {
			return
		}
		copy(answer[3:7], request[3:7])
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// A call allocates little, and an ID from memory nothing.
func TestAllocations(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, c := range map[string]*Client{
		"alone":          newClient(t, scripted(t, fixed)),
		"with a service": newClient(t, scripted(t, fixed), WithService("orders")),
	} {
		var id ID
		var err error
		if got := testing.AllocsPerRun(1000, func() { id, err = c.NextID(ctx) }); err != nil || id != 0x0102030405060708 || got > maxAllocs {
			t.Errorf("%s: a call makes %v allocations (%d, %v)", name, got, id, err)
		} else {
			t.Logf("%s: %v allocations", name, got)
		}
	}
	p := newPrefetcher(newChannel(nil, false, nil), MaxBatch, DefaultMaxAge, newSource(0).fetch)
	p.now.Store(&batch{ids: make([]ID, MaxBatch), until: 1 << 62, wallUntil: 1 << 62, refillAt: -1})
	if got := testing.AllocsPerRun(1000, func() { _, _ = p.get(ctx) }); got != 0 {
		t.Errorf("an ID from memory makes %v allocations", got)
	}
}
