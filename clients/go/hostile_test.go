//go:build go1.25

package kazahana

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// hostileAnswer is a message that no daemon sends, of the file that all languages share.
type hostileAnswer struct {
	Name     string `json:"name"`
	Method   string `json:"method"`
	Message  string `json:"message_hex"`
	AnyError bool   `json:"any_error"` // a ProtocolError is one of the right answers
}

func hostileAnswers(t testing.TB) (all []hostileAnswer) {
	t.Helper()
	text, err := os.ReadFile("../../testdata/hostile_answers.json")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil || len(all) == 0 {
		t.Fatal(err, len(all))
	}
	return all
}

// repeating answers every request with the same bytes.
func repeating(answer []byte) script {
	return func(conn net.Conn) {
		request := make([]byte, 4096)
		for {
			if _, err := conn.Read(request); err != nil {
				return
			}
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	}
}

// hostileCalls make the calls of the file.
var hostileCalls = map[string]func(context.Context, *Client) error{
	"NextID":       func(ctx context.Context, c *Client) error { _, err := c.NextID(ctx); return err },
	"NextIDs":      func(ctx context.Context, c *Client) error { _, err := c.NextIDs(ctx, 2); return err },
	"Inspect":      func(ctx context.Context, c *Client) error { _, err := c.Inspect(ctx, 1); return err },
	"ToInternal":   func(ctx context.Context, c *Client) error { _, err := c.ToInternal(ctx, "x"); return err },
	"UUID":         func(ctx context.Context, c *Client) error { _, err := c.UUID(ctx); return err },
	"Status":       func(ctx context.Context, c *Client) error { _, err := c.Status(ctx); return err },
	"Lock.Acquire": func(ctx context.Context, c *Client) error { _, err := c.Lock(ctx, "k", LockOptions{}); return err },
}

func TestHostileAnswers(t *testing.T) {
	for _, h := range hostileAnswers(t) {
		if strings.HasPrefix(h.Method, "Placement.") {
			continue // package placement has them
		}
		t.Run(h.Name, func(t *testing.T) {
			answer, err := hex.DecodeString(h.Message)
			if err != nil {
				t.Fatal(err)
			}
			c := newClient(t, scripted(t, repeating(answer)), WithTimeout(patience))
			if err := hostileCalls[h.Method](t.Context(), c); err == nil || !h.AnyError && !errors.Is(err, ErrProtocol) {
				t.Errorf("%s: %v, want %s", h.Method, err, ErrProtocol)
			}
		})
	}
}

// A deadline holds against a daemon that sends a byte a second: of an answer that never
// ends, and of notifications.
func TestDeadlineOfATrickle(t *testing.T) {
	for name, begun := range map[string][]byte{
		"an answer":      {0x94, 1, 1, 0xc0, 0xcf},
		"a refusal":      {0x94, 1, 1, 0x92, 0, 0xda, 0x0f, 0xff},
		"a notification": {0x93, 2, 0xc6, 0, 0x0f, 0xff, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, WithTimeout(3500*time.Millisecond), scripted(t, func(conn net.Conn) {
					_, _ = conn.Read(make([]byte, 4096))
					_, err := conn.Write(begun)
					for ; err == nil; _, err = conn.Write([]byte{0}) {
						time.Sleep(time.Second)
					}
				}))
				began := time.Now()
				if _, err := c.NextID(t.Context()); !errors.Is(err, ErrTimeout) || time.Since(began) != 3500*time.Millisecond {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		})
	}
}

// FuzzAnswers plays any bytes to any call. An answer that is taken for an ID is one, and an error
// is a documented one of the package.
func FuzzAnswers(f *testing.F) {
	methods := slices.Sorted(maps.Keys(hostileCalls))
	for _, h := range hostileAnswers(f) {
		message, err := hex.DecodeString(h.Message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message, uint8(max(slices.Index(methods, h.Method), 0)))
	}
	f.Fuzz(func(t *testing.T, answer []byte, method uint8) {
		synctest.Test(t, func(t *testing.T) { // a cut-off answer costs no time
			c := newClient(t, WithTimeout(time.Second), scripted(t, repeating(answer)))
			err := hostileCalls[methods[int(method)%len(methods)]](t.Context(), c)
			var refused *Error
			known := errors.Is(err, ErrProtocol) || errors.Is(err, ErrDaemonUnavailable) || errors.Is(err, ErrTimeout) || errors.As(err, &refused)
			if err != nil && !known {
				t.Errorf("%x: %T: %v", answer, err, err)
			}
			if id, err := c.NextID(t.Context()); err == nil && id < 1 {
				t.Errorf("%x is taken for the ID %d", answer, id)
			}
			last, ahead := ID(0), newClient(t, WithTimeout(time.Second), scripted(t, repeating(answer)), WithPrefetch(2, time.Minute))
			for range 2 { // of one batch
				id, err := ahead.NextID(t.Context())
				if err == nil && id <= last {
					t.Errorf("%x is taken for the ID %d after %d, ahead", answer, id, last)
				}
				last = id
			}
		})
	})
}
