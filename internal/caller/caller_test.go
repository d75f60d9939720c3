package caller

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

func TestMain(m *testing.M) { await.Main(m) }

// serve answers each connection as the script says, until the test ends.
func serve(t *testing.T, scripts ...func(*wire.ServerConn, *wire.Request)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Skip(err) // the path of the temporary directory is too long
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for _, script := range scripts {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c := wire.NewServerConn(conn, conn)
			var r wire.Request
			if c.Read(&r) == nil {
				script(c, &r)
				_ = c.Flush()
			}
			_ = conn.Close()
		}
	}()
	return socket
}

func one(c *wire.ServerConn, r *wire.Request) { c.ReplyUint64(r.ID, 1) }

func hangUp(*wire.ServerConn, *wire.Request) {}

// A lost connection is an error, and the next call has another one.
func TestCallAfterLoss(t *testing.T) {
	c := New(serve(t, one, hangUp, one), time.Minute)
	defer c.Close()
	var id uint64
	var unavailable *UnavailableError
	lost := 0
	for answers := 0; answers < 2; {
		switch err := c.Call(t.Context(), "NextID", &id); {
		case err == nil:
			answers++
		case !errors.As(err, &unavailable) || !errors.Is(err, wire.ErrConnectionLost):
			t.Fatal(err)
		default:
			lost++
		}
	}
	if lost == 0 {
		t.Error("nothing was lost")
	}
}

// Calls that make the first connection at once do not end each other's.
func TestFirstCallsAtOnce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Skip(err) // the path of the temporary directory is too long
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			serving.Go(func() {
				defer conn.Close()
				c := wire.NewServerConn(conn, conn)
				var r wire.Request
				for c.Read(&r) == nil {
					one(c, &r)
					_ = c.Flush()
				}
			})
		}
	})
	for range 200 {
		c := New(socket, await.Patience)
		var calls sync.WaitGroup
		for range 16 {
			calls.Go(func() {
				var id uint64
				if err := c.Call(t.Context(), "NextID", &id); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		_ = c.Close()
	}
	_ = l.Close()
	serving.Wait()
}

func TestErrors(t *testing.T) {
	refusing := New(serve(t, func(c *wire.ServerConn, r *wire.Request) {
		c.ReplyError(r.ID, wire.Errorf(wire.CodeLockHeld, "held").With("owner", "a"))
	}), time.Minute)
	defer refusing.Close()
	if err := refusing.Call(t.Context(), "Lock.Acquire", nil); !HasCode(err, wire.CodeTimeout, wire.CodeLockHeld) || HasCode(err, wire.CodeTimeout) {
		t.Error(err)
	}
	var unavailable *UnavailableError
	missing := New(filepath.Join(t.TempDir(), "no"), time.Minute)
	if err := missing.Call(t.Context(), "Ping", nil); !errors.As(err, &unavailable) || HasCode(err, wire.CodeTimeout) {
		t.Error(err)
	}
	// The time is over while the call connects, or while it waits for the answer.
	silent := serve(t) // its connections wait to be accepted: no more than any system lets wait
	for d := 10 * time.Microsecond; d <= time.Millisecond; d += 10 * time.Microsecond {
		c := New(silent, d)
		if err := c.Call(t.Context(), "Ping", nil); !HasCode(err, wire.CodeTimeout) {
			t.Errorf("after %v: %v", d, err)
		}
		_ = c.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := refusing.Call(ctx, "Ping", nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
