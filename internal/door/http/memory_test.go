package http

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/door/doortest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// TestMemoryOfAConnection: the accept loop waits for no memory, and a connection that is evicted
// ends, under any deadlines of the library.
func TestMemoryOfAConnection(t *testing.T) {
	o := doortest.Options{}
	o.AllowUIDs = []uint32{uint32(os.Getuid())}
	accepted := make(chan net.Conn, 1)
	r := doortest.Start(t, o, func(ctx context.Context, l net.Listener, s *daemon.Server) error {
		defer l.Close()
		nc, err := entrance{s.NewDoor("http", Refusal).Listener(l)}.Accept()
		if err != nil {
			return err
		}
		accepted <- nc
		<-ctx.Done()
		return nc.Close()
	})
	held := func() int64 { return r.Server.Status().Memory.Reserved }
	peer := r.Dial(t)
	nc := <-accepted
	if n := held(); n != 0 {
		t.Errorf("to accept a connection took %d bytes", n)
	}
	for range 2 {
		if _, err := peer.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Read(make([]byte, 1)); err != nil || held() != connectionSize {
			t.Errorf("%d bytes are counted, %v", held(), err)
		}
	}
	o.AllowUIDs[0]++
	r.Server.Allow(o.AllowUIDs, nil)
	for _, set := range []func(time.Time) error{nc.SetReadDeadline, nc.SetWriteDeadline} {
		must.Succeed(t, set(time.Now().Add(doortest.Patience)))
		_, reads := nc.Read(make([]byte, 1))
		_, writes := nc.Write([]byte("x"))
		if !errors.Is(reads, io.EOF) || !errors.Is(writes, os.ErrDeadlineExceeded) {
			t.Errorf("an evicted connection lives on: %v, %v", reads, writes)
		}
	}
}
