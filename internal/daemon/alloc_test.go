package daemon

import (
	"io"
	"testing"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// again reads the same bytes for ever.
type again struct {
	bytes []byte
	at    int
}

func (a *again) Read(b []byte) (int, error) {
	n := copy(b, a.bytes[a.at:])
	a.at = (a.at + n) % len(a.bytes)
	return n, nil
}

// inMemory is a connection without a socket that asks the same for ever.
func inMemory(r *rig, method string, params ...any) *conn {
	c := &conn{wire: wire.NewServerConn(&again{bytes: request(1, method, slice(params))}, io.Discard)}
	c.responder = responder{server: r.server, conn: c, account: &account{user: &share{}}, out: &c.wire.Outbox}
	return c
}

// busy never lets a request wait, on any machine.
func busy(s *setup) {
	wide(s)
	s.source = clock.System{}
	s.change(func(c *config.Service) { c.Fallback = config.FallbackNone })
}

func (c *conn) answerOne(t testing.TB) {
	must.Succeed(t, c.wire.Read(&c.req))
	if w, _ := c.handle(t.Context()); w != nil {
		c.await(t.Context(), w)
	}
	if !c.wire.Pending() {
		must.Succeed(t, c.wire.Flush())
	}
}

func TestAllocations(t *testing.T) {
	r := newRig(t, busy)
	for _, test := range []struct {
		method string
		params []any
		most   float64
	}{
		{"NextID", nil, 0},
		{"NextID", []any{options{"service": "default", "timeout_ms": 100, "regular_only": true, "format": "int"}}, 0},
		{"NextIDs", []any{10}, 0},
		{"Ping", nil, 0},
		{"NextID", []any{options{"format": "string"}}, 1},
		{"NextID", []any{options{"format": "external"}}, 2},
	} {
		c := inMemory(r, test.method, test.params...)
		if got := testing.AllocsPerRun(2000, func() { c.answerOne(t) }); got > test.most {
			t.Errorf("%s%v: %v allocations, at most %v are right", test.method, test.params, got, test.most)
		}
	}
}

// A connection that asked for a lot does not keep what that took.
func TestIdleConnectionsAreSmall(t *testing.T) {
	r := newRig(t, func(s *setup) { s.early = true }, wide, func(s *setup) {
		s.change(func(c *config.Service) { c.StartupWait = 0 })
	})
	c := inMemory(r, "NextIDs", 5000) // random fallback: as many ranges as IDs
	c.answerOne(t)
	if n := cap(c.ranges); n > 64 {
		t.Errorf("room for %d ranges is kept", n)
	}
	if n := r.services["default"].Generator().Stats().Issued[generator.FallbackRandomID]; n != 5000 {
		t.Errorf("%d random IDs", n)
	}
}
