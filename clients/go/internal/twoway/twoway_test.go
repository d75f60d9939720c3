//go:build go1.25

// For testing/synctest, with any version in go.mod.
//go:debug asynctimerchan=0

package twoway

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/clienttest"
)

func TestMain(m *testing.M) { os.Exit(clienttest.Main(m)) }

// pair returns a Conn, and what it is connected with.
func pair(t *testing.T, told func(*Conn, *Message)) (*Conn, *clienttest.Peer, net.Conn) {
	near, far := net.Pipe()
	c := New(near, told)
	t.Cleanup(func() {
		_ = far.Close()
		_ = c.Close()
	})
	return c, clienttest.NewPeer(far), far
}

// Calls may be answered in any order, and late answers are for nobody.
func TestCallsAreConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer, _ := pair(t, nil)
		call := func(ctx context.Context) <-chan any {
			got := make(chan any, 1)
			go func() {
				var result any
				if err := c.Call(ctx, "M", &result); err != nil {
					result = err
				}
				got <- result
			}()
			return got
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		canceled, stop := context.WithCancel(t.Context())
		calls := []<-chan any{call(t.Context())}
		first := peer.Next()
		calls = append(calls, call(short))
		second := peer.Next()
		calls = append(calls, call(canceled))
		third := peer.Next()
		calls = append(calls, call(t.Context()))
		fourth := peer.Next()
		peer.Reply(fourth.ID, "fourth")
		if got := <-calls[3]; got != "fourth" {
			t.Error(got)
		}
		if err, _ := (<-calls[1]).(error); !errors.Is(err, kazahana.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		stop()
		if err, _ := (<-calls[2]).(error); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		peer.Reply(second.ID, "late")
		peer.Reply(third.ID, "late")
		peer.Refuse(first.ID, "LOCK_HELD: held owner=me")
		var held *kazahana.LockHeldError
		if err, _ := (<-calls[0]).(error); !errors.As(err, &held) || held.Owner != "me" {
			t.Error(err)
		}
	})
}

// A call that waits fails with the reason for which the connection has ended.
func TestEnds(t *testing.T) {
	for want, end := range map[error]func(*clienttest.Peer, net.Conn, *Conn){
		kazahana.ErrDaemonUnavailable: func(_ *clienttest.Peer, far net.Conn, _ *Conn) { _ = far.Close() },
		kazahana.ErrPermissionDenied:  func(p *clienttest.Peer, _ net.Conn, _ *Conn) { p.Refuse(0, "PERMISSION_DENIED: not you") },
		kazahana.ErrProtocol:          func(_ *clienttest.Peer, far net.Conn, _ *Conn) { _, _ = far.Write([]byte("HTTP/1.1 400\r\n")) },
		kazahana.ErrClosed:            func(_ *clienttest.Peer, _ net.Conn, c *Conn) { _ = c.Close() },
	} {
		c, peer, far := pair(t, nil)
		waiting := make(chan error, 1)
		go func() { waiting <- c.Call(t.Context(), "M", nil) }()
		peer.Next()
		end(peer, far, c)
		<-c.Done()
		if err := <-waiting; !errors.Is(err, want) || !errors.Is(c.Err(), want) {
			t.Errorf("%v, %v, want %v", err, c.Err(), want)
		}
		if err := c.Call(t.Context(), "M", nil); !errors.Is(err, want) {
			t.Error(err)
		}
		if err := c.Notify("M"); !errors.Is(err, want) {
			t.Error(err)
		}
	}
}

// Requests of the other side are answered: with a result, or with the text of an error, which is
// cut to what a daemon reads.
func TestAnswers(t *testing.T) {
	_, peer, _ := pair(t, func(c *Conn, m *Message) {
		var refusal error
		if m.Method == "Refuse" {
			refusal = errors.New("kazahana: " + strings.Repeat("é", maxRefusal))
		}
		var params map[string]any
		if err := errors.Join(m.Decode(&params), c.Answer(m, params["n"], refusal)); err != nil || !m.IsRequest {
			t.Error(err)
		}
	})
	peer.Ask(7, "Return", map[string]any{"n": 5})
	if m := peer.Next(); m.ID != 7 || m.Refusal != nil || m.Result != int64(5) {
		t.Errorf("%+v", m)
	}
	peer.Ask(8, "Refuse", map[string]any{})
	if m := peer.Next(); m.ID != 8 || m.Refusal == nil || !strings.HasPrefix(m.Refusal.Error(), "éé") || len(m.Refusal.Error()) > maxRefusal {
		t.Errorf("%+v", m)
	}
}
