package memcached

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/door/doortest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// stat is a value of stats.
func (p *peer) stat(name string) (value string) {
	p.t.Helper()
	_ = p.SetDeadline(time.Now().Add(doortest.Patience)) // for this one: a test may ask for long
	p.send("stats\r\n")
	for {
		line := p.line()
		if line == "END" {
			return value
		}
		if v, found := strings.CutPrefix(line, "STAT "+name+" "); found {
			value = v
		}
	}
}

// TestHalfClosedPeerThatDoesNotRead: a connection whose peer sends no more is closed, and the peer
// still reads its answers.
func TestHalfClosedPeerThatDoesNotRead(t *testing.T) {
	engines(t, func(t *testing.T, loop bool) {
		o := doortest.Options{}
		o.MemoryLimit = 64 << 20
		r := start(t, loop, o)
		p := dial(t, r)
		p.send("get id\r\n")
		must.Succeed(t, p.Conn.(*net.UnixConn).CloseWrite())
		other := dial(t, r)
		await.Eventually(t, "it is not served any more", func() bool { return other.stat("curr_connections") == "1" })
		await.Eventually(t, "it does not count any more", func() bool { return r.Server.Status().Connections == 1 })
		p.ids("id")
		p.ends()
	})
}

// TestNoRoomInTheFastPath: a connection that the event loop cannot take is served all the same.
func TestNoRoomInTheFastPath(t *testing.T) {
	r := doortest.Start(t, doortest.Options{}, func(ctx context.Context, l net.Listener, d *daemon.Server) error {
		s := newServer(d.NewDoor("memcached", Refusal), Options{Log: zap.NewNop()})
		path, err := newFastPath(s)
		if err != nil {
			return err
		}
		path.closed = true
		s.fastPath = path
		s.serve(ctx, l)
		return nil
	})
	p := dial(t, r)
	p.get("id")
	p.get("id", "id")
}
