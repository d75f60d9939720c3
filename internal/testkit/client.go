package testkit

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// DialSocket connects to a daemon.
func DialSocket(socket string) (*wire.Client, error) {
	conn, err := net.DialTimeout("unix", socket, await.Patience)
	if err != nil {
		return nil, err
	}
	return wire.NewClient(conn), nil
}

// Client is a connection for the time of a test.
type Client struct {
	*wire.Client
	T *testing.T
}

func (s *Site) Dial() *Client {
	s.T.Helper()
	c, err := DialSocket(s.Socket)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = c.Close() })
	return &Client{c, s.T}
}

// Try calls a method.
func (c *Client) Try(method string, target any, params ...any) error {
	ctx, cancel := context.WithTimeout(c.T.Context(), await.Patience)
	defer cancel()
	return c.Call(ctx, method, target, params...)
}

// Must calls a method that has to succeed.
func (c *Client) Must(method string, target any, params ...any) {
	c.T.Helper()
	if err := c.Try(method, target, params...); err != nil {
		c.T.Fatalf("%s: %v", method, err)
	}
}

// ID asks for one ID.
func (c *Client) ID(options ...map[string]any) snowflake.ID {
	c.T.Helper()
	var id uint64
	c.Must("NextID", &id, asParams(options)...)
	return snowflake.ID(id)
}

// RegularID asks until an ID is regular: on a busy machine a daemon may come too late to
// renew a lease of seconds.
func (c *Client) RegularID() (id snowflake.ID) {
	c.T.Helper()
	await.Eventually(c.T, "an ID is regular", func() bool {
		id = c.ID()
		return !IsFallback(uint64(id))
	})
	return id
}

// IDs asks for a batch.
func (c *Client) IDs(n int, options ...map[string]any) []uint64 {
	c.T.Helper()
	var ids []uint64
	c.Must("NextIDs", &ids, append([]any{n}, asParams(options)...)...)
	if len(ids) != n || !Ascending(ids) {
		c.T.Fatalf("NextIDs(%d) gave %d IDs, ascending: %v", n, len(ids), Ascending(ids))
	}
	return ids
}

// Refused asks for an ID that must not be given, and returns the error.
func (c *Client) Refused(code wire.Code, options ...map[string]any) *wire.Error {
	c.T.Helper()
	var id uint64
	err := c.Try("NextID", &id, asParams(options)...)
	var refusal *wire.Error
	if !errors.As(err, &refusal) || refusal.Code != code {
		c.T.Fatalf("NextID gave %d and the error %v, want %s", id, err, code)
	}
	return refusal
}

func asParams(options []map[string]any) (params []any) {
	for _, o := range options {
		params = append(params, o)
	}
	return params
}

func (c *Client) Status() daemon.Status {
	c.T.Helper()
	var st daemon.Status
	c.Must("Status", &st)
	return st
}

// AwaitMode waits until the daemon is in one of the modes.
func (c *Client) AwaitMode(modes ...string) daemon.Status {
	c.T.Helper()
	var st daemon.Status
	await.Eventually(c.T, "mode "+strings.Join(modes, " or "), func() bool {
		st = c.Status()
		return slices.Contains(modes, st.Mode)
	})
	return st
}

// Lease is what the first service holds. The status shows it a moment after the
// first ID that is made from it.
func (c *Client) Lease() (l issuer.LeaseStatus) {
	c.T.Helper()
	await.Eventually(c.T, "a lease is held", func() bool {
		leases := c.Status().Services[0].Leases
		if len(leases) > 0 {
			l = leases[len(leases)-1]
		}
		return len(leases) > 0
	})
	return l
}

var FallbackModes = []string{"fallback_cached", "fallback_random"}

const LargestBatch = 1000

// Issued is how many IDs of all services and kinds the daemon has made.
func Issued(st daemon.Status) (n uint64) {
	for _, svc := range st.Services {
		n += svc.Issued.Regular + svc.Issued.FallbackCached + svc.Issued.FallbackRandom
	}
	return n
}
