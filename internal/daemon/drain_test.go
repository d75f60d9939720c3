package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/unixsock"
	"github.com/kazahana/kazahana/internal/wire"
)

// drains begins the drain, and returns when peers are told of it.
func (r *rig) drains() {
	r.t.Helper()
	r.cancel()
	await.Eventually(r.t, "the drain begins", r.server.draining.Load)
}

func TestDrainAnswersWhatIsUnderWay(t *testing.T) {
	r := newRig(t).start()
	one, batch, heavy, idle, half := r.dial(), r.dial(), r.dial(), r.dial(), r.dial()
	one.ids(256)
	idle.alive()
	half.send(append(request(1, "Ping", []any{}), request(2, "NextID", []any{})[:4]...))
	half.receive()
	one.send(append(request(1, "NextID", []any{patient()}), request(2, "NextID", []any{})...))
	batch.ask("NextIDs", 300, patient())
	heavy.ask("NextIDs", maxFastPathBatch+1, patient())
	r.waiters(3)
	heavy.ask("Nonsense") // which is not read before the drain
	r.drains()
	if err := r.server.Ready(t.Context()); !errors.Is(err, errShuttingDown) {
		t.Errorf("Ready: %v", err)
	}
	if _, err := dial(t, r.path); err == nil {
		t.Error("a new connection")
	}
	if _, err := os.Stat(r.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	// Peers that are owed no answer hear of it at once.
	idle.ends()
	half.ends()
	// Requests under way get their IDs as ever, and those behind them are refused.
	await.Eventually(t, "all are served", func() bool {
		r.clock.Advance(time.Millisecond)
		return r.awaiting() == 0
	})
	if _, err := idOf(one.receive().result); err != nil {
		t.Error(err)
	}
	if ids, err := idsOf(batch.receive().result); err != nil || len(ids) != 300 {
		t.Errorf("%d IDs, %v", len(ids), err)
	}
	if ids, err := idsOf(heavy.receive().result); err != nil || len(ids) != maxFastPathBatch+1 {
		t.Errorf("%d IDs, %v", len(ids), err)
	}
	one.wantError(one.receive(), wire.CodeShuttingDown)
	heavy.wantError(heavy.receive(), wire.CodeShuttingDown)
	for _, p := range []*peer{one, batch, heavy} {
		p.ends()
	}
	r.stop()
}

func TestDrainClosesIdleConnections(t *testing.T) {
	ignored := goleak.IgnoreCurrent()
	r := newRig(t).start()
	var idle []*peer
	for range 20 {
		p := r.dial()
		p.alive()
		idle = append(idle, p)
	}
	r.stop()
	for _, p := range idle {
		p.ends()
	}
	r.services["default"].Close(context.Background())
	await.Success(t, "no goroutine is left", func() error { return goleak.Find(ignored) })
}

func TestDrainTimeout(t *testing.T) {
	r := newRig(t, func(s *setup) { s.DrainTimeout = time.Millisecond }).start()
	p, batch := r.dial(), r.dial()
	p.ids(256)
	p.ask("NextID", patient())
	batch.ask("NextIDs", 3, patient())
	r.waiters(2)
	r.cancel()
	for _, p := range []*peer{p, batch} {
		p.wantError(p.receive(), wire.CodeShuttingDown)
		p.ends()
	}
	r.stop()
	if n := r.logs.FilterMessageSnippet("drain timeout").Len(); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// Nothing that a peer does, or leaves undone, keeps the daemon from stopping.
func TestDrainIsNotHeldUp(t *testing.T) {
	hurried := func(s *setup) {
		s.DrainTimeout, s.patience.cut, s.patience.write, s.patience.refuse = time.Millisecond, time.Millisecond, time.Hour, time.Hour
	}
	t.Run("by one that does not read", func(t *testing.T) {
		r := newRig(t, wide, hurried, func(s *setup) { s.source = clock.System{} }).start()
		p := r.dial()
		p.send(bytes.Repeat(request(1, "NextIDs", []any{MaxBatch}), 1000))
		await.Eventually(t, "its writer is blocked", func() bool { return writing() == 1 })
		r.stop()
	})
	t.Run("by one that is turned away and says nothing", func(t *testing.T) {
		r := newRig(t, hurried, func(s *setup) { s.MaxConnections = 0 }).start()
		p := r.dial()
		await.Eventually(t, "it is heard out", func() bool {
			r.server.mu.Lock()
			defer r.server.mu.Unlock()
			return len(r.server.refused) == 1
		})
		r.stop()
		p.ends()
	})
	t.Run("by one that is heard out after nonsense", func(t *testing.T) {
		r := newRig(t, hurried).start()
		p := r.dial()
		p.send([]byte("GET /"))
		p.wantError(p.receive(), wire.CodeParseError)
		r.stop()
	})
	t.Run("by one that never stops asking", func(t *testing.T) {
		r := newRig(t, hurried).start()
		p := r.dial()
		p.alive()
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			for {
				if _, err := p.Write(request(1, "Ping", []any{})); err != nil {
					return
				}
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, p.UnixConn) }()
		r.stop()
		<-asked
	})
}

// A listener that fails ends the server, in order, with an error.
func TestServeOfABrokenListener(t *testing.T) {
	for name, test := range map[string]struct {
		breaks func(*unixsock.Listener) error
		want   error
	}{
		"closed": {func(l *unixsock.Listener) error { return l.UnixListener.Close() }, net.ErrClosed},
		"no socket": {func(l *unixsock.Listener) error {
			raw, err := l.SyscallConn()
			must.Succeed(t, err)
			null, err := os.Open(os.DevNull)
			must.Succeed(t, err)
			defer func() { _ = null.Close() }()
			must.Succeed(t, raw.Control(func(fd uintptr) { err = unix.Dup2(int(null.Fd()), int(fd)) }))
			return err
		}, syscall.ENOTSOCK},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			l, err := unixsock.Listen(t.TempDir()+"/s", unixsock.Options{Mode: 0o600})
			if err != nil {
				t.Skip(err)
			}
			must.Succeed(t, test.breaks(l))
			if err := r.server.Serve(t.Context(), l); !errors.Is(err, test.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// scarce is a listener that first lacks something.
type scarce struct {
	net.Listener
	lacks []error
}

func (l *scarce) Accept() (net.Conn, error) {
	if len(l.lacks) == 0 {
		return l.Listener.Accept()
	}
	err := l.lacks[0]
	l.lacks = l.lacks[1:]
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

// What may pass is no reason to end.
func TestAcceptOutlastsALack(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("unix", t.TempDir()+"/s")
	must.Succeed(t, err)
	must.Succeed(t, l.Close())
	lacks := []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOMEM, syscall.ENOBUFS}
	if _, err := r.server.acceptOne(&scarce{l, lacks}, passes); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}
