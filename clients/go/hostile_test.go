package kazahana

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"testing"
)

// hostileAnswer is a message that no daemon sends, of the file that all languages share.
type hostileAnswer struct {
	Name     string `json:"name"`
	Method   string `json:"method"`
	Message  string `json:"message_hex"`
	AnyError bool   `json:"any_error"` // a ProtocolError is one of the right answers
}

func hostileAnswers(t *testing.T) (all []hostileAnswer) {
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

func TestHostileAnswers(t *testing.T) {
	calls := map[string]func(*Client) error{
		"NextID":            func(c *Client) error { _, err := c.NextID(t.Context()); return err },
		"NextIDs":           func(c *Client) error { _, err := c.NextIDs(t.Context(), 2); return err },
		"Inspect":           func(c *Client) error { _, err := c.Inspect(t.Context(), 1); return err },
		"ToInternal":        func(c *Client) error { _, err := c.ToInternal(t.Context(), "x"); return err },
		"UUID":              func(c *Client) error { _, err := c.UUID(t.Context()); return err },
		"Status":            func(c *Client) error { _, err := c.Status(t.Context()); return err },
		"Lock.Acquire":      func(c *Client) error { _, err := c.Lock(t.Context(), "k", LockOptions{}); return err },
		"Placement.Resolve": func(c *Client) error { _, err := c.Resolve(t.Context(), "k", "i"); return err },
	}
	for _, h := range hostileAnswers(t) {
		t.Run(h.Name, func(t *testing.T) {
			answer, err := hex.DecodeString(h.Message)
			if err != nil {
				t.Fatal(err)
			}
			c := newClient(t, scripted(t, repeating(answer)), WithTimeout(patience))
			if err := calls[h.Method](c); err == nil || !h.AnyError && !errors.Is(err, ErrProtocol) {
				t.Errorf("%s: %v, want %s", h.Method, err, ErrProtocol)
			}
		})
	}
}
