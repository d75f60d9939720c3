//go:build go1.25

// For testing/synctest, with any version in go.mod.
//go:debug asynctimerchan=0

package placement

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/clienttest"
)

func TestMain(m *testing.M) { os.Exit(clienttest.Main(m)) }

const patience = clienttest.Patience

// newClient returns the Placement of a client that ends with the test.
func newClient(t *testing.T, opts ...kazahana.Option) *Placement {
	t.Helper()
	c, err := kazahana.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return New(c)
}

// of returns the Placement of a client of a daemon that is up.
func of(t *testing.T, d *clienttest.Daemon) *Placement {
	t.Helper()
	p := newClient(t, kazahana.WithSocket(d.Socket))
	eventually(t, "the daemon", func() error { return p.client.Ping(t.Context()) })
	return p
}

func scripted(t *testing.T, scripts ...clienttest.Script) kazahana.Option {
	return kazahana.WithDialer(clienttest.Scripted(t, scripts...))
}

// The types belong to the codes.
func TestErrorTypes(t *testing.T) {
	for text, check := range map[string]func(error) bool{
		clienttest.Text("PLACEMENT_NOT_READY", "off", "state", "off"): func(err error) bool {
			var e *NotReadyError
			return errors.As(err, &e) && e.State == "off" && errors.Is(err, ErrNotReady)
		},
		clienttest.Text("PLACEMENT_PENDING", "wait", "cause", "another member still owns it"): func(err error) bool {
			var e *PendingError
			return errors.As(err, &e) && e.Cause == "another member still owns it" && errors.Is(err, ErrPending)
		},
		clienttest.Text("ACTIVATION_FAILED", "failed", "cause", "full"): func(err error) bool {
			var e *ActivationFailedError
			return errors.As(err, &e) && e.Cause == "full" && errors.Is(err, ErrActivationFailed)
		},
		clienttest.Text("ACTIVATION_ENDED", "over"):         func(err error) bool { return errors.Is(err, ErrActivationEnded) },
		clienttest.Text("PLACEMENT_UNSERVED", "no process"): func(err error) bool { return errors.Is(err, ErrUnserved) },
	} {
		p := newClient(t, scripted(t, clienttest.Refusing(text)))
		if _, err := p.Resolve(t.Context(), "room", "1"); !check(err) {
			t.Errorf("%s became %T: %v", text, err, err)
		}
	}
	p := newClient(t, scripted(t, clienttest.Answering(func(p *clienttest.Peer, m *clienttest.Message) bool {
		return p.Reply(m.ID, map[string]any{"kind": "room"}) // without an authority
	})))
	if _, err := p.Resolve(t.Context(), "room", "1"); !errors.Is(err, kazahana.ErrProtocol) {
		t.Error(err)
	}
}

// No answer is taken for a resolution that is none.
func TestHostileAnswers(t *testing.T) {
	var all []struct {
		Name, Method string
		Message      string `json:"message_hex"`
	}
	text, err := os.ReadFile("../../../testdata/hostile_answers.json")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, h := range all {
		if h.Method != "Placement.Resolve" {
			continue
		}
		tried++
		answer, err := hex.DecodeString(h.Message)
		if err != nil {
			t.Fatal(err)
		}
		p := newClient(t, scripted(t, func(conn net.Conn) {
			if _, err := conn.Read(make([]byte, 4096)); err == nil {
				_, _ = conn.Write(answer)
			}
		}))
		if r, err := p.Resolve(t.Context(), "k", "i"); !errors.Is(err, kazahana.ErrProtocol) {
			t.Errorf("%s: %+v, %v", h.Name, r, err)
		}
	}
	if tried == 0 {
		t.Error("there are none")
	}
}

// eventually tries until there is no error.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
