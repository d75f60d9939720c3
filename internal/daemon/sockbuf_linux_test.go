package daemon

import (
	"bytes"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A connection that has ended counts until its peer has read its answers, or is gone: the
// kernel holds them for the daemon.
func TestUnreadAnswersCountAfterTheEnd(t *testing.T) {
	for _, engine := range engines {
		r := newRig(t, func(s *setup) {
			s.EventLoop, s.MemoryLimit, s.MaxConnections, s.patience.refuse = engine.loop, 64<<20, 2, time.Millisecond
		}).start()
		var peers []*peer
		for range 2 {
			p := r.dial()
			p.ask("NextID")
			must.Succeed(t, p.CloseWrite())
			peers = append(peers, p)
		}
		await.Eventually(t, "they have ended, and count", func() bool { return r.served() == 0 && r.server.connections() == 2 })
		r.dial().ends() // a connection too many, which asks nothing
		peers[0].succeeds()
		peers[0].ends()
		_ = peers[1].Close()
		await.Eventually(t, "they count no longer", func() bool { return r.server.connections() == 0 })
		r.dial().id()
	}
}

// However many peers do not read, the kernel holds for each what its connection is counted
// for, and large buffers take no more than their share.
func TestTheKernelHoldsWhatIsCounted(t *testing.T) {
	const peers, limit = 60, 64 << 20
	const share = int64(limit / sendingShare)
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			r := newRig(t, wide, func(s *setup) {
				s.EventLoop, s.MemoryLimit, s.source, s.patience.write = engine.loop, limit, clock.System{}, time.Hour
			}).start()
			for range peers {
				p := r.dial()
				go func() { _, _ = p.Write(bytes.Repeat(request(1, "NextIDs", []any{1000}), 100)) }()
			}
			await.Eventually(t, "all writers are blocked", func() bool { return writing() == peers })
			held, large := int64(0), 0
			r.server.eachConn(func(c *conn) {
				n := int64(unread(c.net))
				held += n
				if n > largeSendCost || !c.account.large && n > smallSendCost {
					t.Errorf("the kernel holds %d bytes for a connection", n)
				}
				if c.account.large {
					large++
				}
			})
			if want := int(ofUser(0, share) / largeSendCost); large != want || held > share+peers*smallSendCost {
				t.Errorf("%d connections have large buffers, want %d; %d bytes are held", large, want, held)
			}
		})
	}
}

// Who is turned away and does not read the reason costs memory too: that is bounded.
func TestUnreadRefusalsAreLimited(t *testing.T) {
	r := newRig(t, func(s *setup) { s.MemoryLimit, s.MaxConnections = 64<<20, 1 }).start()
	r.dial().id()
	p := r.dial()
	p.ask("Ping")
	await.Eventually(t, "one has not read", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.unreadRefusals == 1
	})
	r.server.mu.Lock()
	r.server.unreadRefusals += maxUnreadRefusals - 1
	r.server.mu.Unlock()
	r.dial().ends()
	p.receive()
	p.ends()
	await.Eventually(t, "it has", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.unreadRefusals == maxUnreadRefusals-1
	})
}

// A connection over TCP whose peer resets it after its end counts no longer, though the peer has not
// read all.
func TestResetConnectionsAreForgotten(t *testing.T) {
	r := newRig(t, func(s *setup) { s.MemoryLimit = 64 << 20 }).start()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	small := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			must.Succeed(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, smallSend))
		})
	}}
	p, err := small.Dial("tcp", l.Addr().String())
	must.Succeed(t, err)
	g, err := r.server.NewDoor("door", nil).Listener(l).Accept()
	must.Succeed(t, err)
	// So large that the kernel takes at once more than it can pass on to the peer.
	setSendBuffer(g.(*Guest), largeSend*2)
	_, err = g.Write(make([]byte, largeSend))
	must.Succeed(t, err)
	must.Succeed(t, g.Close())
	if n := r.server.connections(); n != 1 {
		t.Fatalf("%d connections count before the reset", n)
	}
	must.Succeed(t, p.Close()) // a reset, because there is something to read
	await.Eventually(t, "it counts no longer", func() bool { return r.server.connections() == 0 })
}
