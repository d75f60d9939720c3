package kazahana

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// A Client calls the daemon of this host. Any number of goroutines may share it: a call takes
// an idle connection, or opens another, and puts it back. So there are as many as calls at the
// same time, of which 64 are kept. A lock has one of its own.
type Client struct {
	dial     dialer
	single   bool        // no call makes a second attempt
	defaults callOptions // of calls without options: never changed
	timeout  time.Duration
	ahead    *prefetcher // nil: without
	reached  atomic.Bool // a daemon was there once

	mu     sync.Mutex // held for no longer than it takes to change what follows
	idle   []*conn    // in the order of their use
	closed bool
}

// New returns a Client. It does not connect; errors are about the options.
func New(opts ...Option) (*Client, error) {
	s := settings{dial: dialSocket(findSocket), timeout: DefaultTimeout}
	for _, opt := range opts {
		opt(&s)
	}
	if s.err != nil {
		return nil, s.err
	}
	c := &Client{dial: s.dial, single: s.single, defaults: callOptions{}, timeout: s.timeout}
	if s.service != "" {
		c.defaults["service"] = s.service
	}
	if s.prefetch > 0 {
		c.ahead = newPrefetcher(s.prefetch, s.maxAge, func(ctx context.Context, timeout time.Duration, n int) ([]ID, error) {
			return some(ctx, c, timeout, n, c.defaults, readIDs)
		})
	}
	return c, nil
}

// Close closes the connections. A call under way goes on to its end; later ones fail with
// ErrClosed. Locks stay held: each has a connection of its own, as that of Open.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.closeIdle()
	c.passed()
	return nil
}

// Timeout returns the time limit of a call: see WithTimeout.
func (c *Client) Timeout() time.Duration { return c.timeout }

func (c *Client) options(opts []CallOption) callOptions {
	if len(opts) == 0 {
		return c.defaults
	}
	o := maps.Clone(c.defaults)
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// NextID returns an ID that is greater than every ID of the service that was returned
// before the call. With WithPrefetch it usually comes from memory, and is greater than the
// earlier ones of this Client only.
func (c *Client) NextID(ctx context.Context, opts ...CallOption) (ID, error) {
	if c.ahead != nil && len(opts) == 0 {
		if id, ok := c.ahead.take(); ok {
			return id, nil
		}
		return c.ahead.wait(ctx, c.timeout)
	}
	return c.askID(ctx, opts)
}

// askID is a function of its own to keep the path of prefetched IDs in NextID short.
func (c *Client) askID(ctx context.Context, opts []CallOption) (ID, error) {
	defer c.passed()
	return call(ctx, c, c.timeout, request{method: "NextID", ids: c.options(opts)}, readID)
}

// passed drops the IDs in memory, once greater ones may have come another way.
func (c *Client) passed() {
	if c.ahead != nil {
		c.ahead.drop()
	}
}

// NextIDs returns n ascending IDs; n is 1 to MaxBatch.
func (c *Client) NextIDs(ctx context.Context, n int, opts ...CallOption) ([]ID, error) {
	defer c.passed()
	return some(ctx, c, c.timeout, n, c.options(opts), readIDs)
}

// NextExternalIDs returns n external IDs, in the order of their IDs.
func (c *Client) NextExternalIDs(ctx context.Context, n int, opts ...CallOption) ([]string, error) {
	defer c.passed()
	o := maps.Clone(c.options(opts))
	o["format"] = "external"
	return some(ctx, c, c.timeout, n, o, readTexts)
}

func some[T any](ctx context.Context, c *Client, timeout time.Duration, n int, o callOptions, read reading[[]T]) ([]T, error) {
	if n < 1 || n > MaxBatch {
		return nil, invalid(ErrInvalidParams, "a count of %d is out of range: 1 to %d", n, MaxBatch)
	}
	ids, err := call(ctx, c, timeout, request{method: "NextIDs", params: []any{n}, ids: o}, read)
	if err != nil {
		return nil, err
	}
	return ids, miscounted(len(ids), n)
}

// miscounted returns an error unless the numbers are equal.
func miscounted(got, want int) error {
	if got == want {
		return nil
	}
	return protocolError("the answer has %d values instead of %d", got, want)
}

// Call calls any method of the daemon by its name on the wire: see the protocol's page. It
// repeats the call when the connection is lost, so the method must be idempotent, by its
// nature or by a request_id among the params. A parameter of the type Remaining is made
// for each attempt. The result is stored in result, a pointer or nil, by the rules and the
// tags of encoding/json, and structs among the params are encoded by them.
func (c *Client) Call(ctx context.Context, method string, result any, params ...any) error {
	return c.CallWithin(ctx, c.timeout, method, result, params...)
}

// CallWithin is Call with another time limit than the Client's.
func (c *Client) CallWithin(ctx context.Context, timeout time.Duration, method string, result any, params ...any) error {
	value, err := call(ctx, c, timeout, request{method: method, params: params}, readValue)
	if err != nil {
		return err
	}
	return assign(value, result)
}
