//go:build go1.25

// For testing/synctest, with any version in go.mod.
//go:debug asynctimerchan=0

package kazahana

import (
	"os"
	"testing"

	"github.com/kazahana/kazahana/clients/go/internal/clienttest"
)

func TestMain(m *testing.M) { os.Exit(clienttest.Main(m)) }

const patience = clienttest.Patience

type (
	script  = clienttest.Script
	peer    = clienttest.Peer
	message = clienttest.Message
)

var (
	answering = clienttest.Answering
	refuse    = clienttest.Refusing
	number    = clienttest.Number
)

// daemon is a kazahanad of one test, which can be killed and started again.
type daemon struct {
	*clienttest.Daemon
	t testing.TB
}

func newDaemon(t testing.TB, args ...string) *daemon {
	t.Helper()
	return &daemon{clienttest.NewDaemon(t, args...), t}
}

// client returns a Client of the daemon that is up.
func (d *daemon) client(opts ...Option) *Client {
	d.t.Helper()
	d.Await()
	return newClient(d.t, append([]Option{WithSocket(d.Socket)}, opts...)...)
}

func newClient(t testing.TB, opts ...Option) *Client {
	t.Helper()
	c, err := New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// nextID asks for an ID, which must come.
func nextID(t *testing.T, c *Client) ID {
	t.Helper()
	id, err := c.NextID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// scripted is the option for a scripted daemon.
func scripted(t *testing.T, scripts ...script) Option {
	return WithDialer(clienttest.Scripted(t, scripts...))
}

// text is the text of an error on the wire; details are keys and values.
func text(code Code, message string, details ...any) string {
	return clienttest.Text(string(code), message, details...)
}
