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
	ahead    *prefetcher     // nil: without
	life     context.Context // ends with Close
	end      context.CancelFunc
	reached  atomic.Bool // a daemon was there once

	mu   sync.Mutex
	idle []*conn // in the order of their use
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
	c.life, c.end = context.WithCancel(context.Background())
	if s.service != "" {
		c.defaults["service"] = s.service
	}
	if s.prefetch > 0 {
		c.ahead = newPrefetcher(c.life, s.prefetch, s.maxAge, func(n int) ([]ID, error) {
			// Waiting callers get the error of the fetch, and not their own timeout's.
			return some(context.Background(), c, DaemonTime(c.timeout), n, c.defaults, readIDs)
		})
	}
	return c, nil
}

// Close fails the calls under way with ErrClosed, and closes the connections. Locks stay held:
// each has a connection of its own, as that of Open.
func (c *Client) Close() error {
	c.end()
	if c.ahead != nil {
		c.ahead.drop()
		c.ahead.work.Wait()
	}
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

// ofService calls a method that knows the options that are given, and no others.
func (c *Client) ofService(ctx context.Context, opts []CallOption, method string, result any, params ...any) error {
	if o := c.options(opts); len(o) > 0 {
		params = append(params, map[string]any(o))
	}
	return c.Call(ctx, method, result, params...)
}

// Inspect takes an ID apart by the service's present layout. Layout.Inspect works without
// the daemon.
func (c *Client) Inspect(ctx context.Context, id ID, opts ...CallOption) (Inspection, error) {
	var in struct {
		External    string `json:"external"`
		TimestampMS int64  `json:"timestamp_ms"`
		Time        string `json:"time"`
		MachineID   int64  `json:"machine_id"`
		Sequence    int64  `json:"sequence"`
		Kind        string `json:"kind"`
		BitID       int    `json:"bit_id"`
		BitSeq      int    `json:"bit_seq"`
		EpochMS     int64  `json:"epoch_ms"`
	}
	if err := c.ofService(ctx, opts, "Inspect", &in, int64(id)); err != nil {
		return Inspection{}, err
	}
	if in.Time == "" {
		return Inspection{}, protocolError("the answer to Inspect has no time")
	}
	return Inspection{
		ID: id, External: in.External, Time: time.UnixMilli(in.TimestampMS).UTC(),
		MachineID: in.MachineID, Sequence: in.Sequence, Fallback: in.Kind == "fallback",
		Layout: Layout{BitTS: valueBits - in.BitID - in.BitSeq, BitID: in.BitID, BitSeq: in.BitSeq, Epoch: time.UnixMilli(in.EpochMS).UTC()},
	}, nil
}

// IsFallback reports whether the ID was made while the daemon had no valid lease.
func (c *Client) IsFallback(ctx context.Context, id ID, opts ...CallOption) (bool, error) {
	in, err := c.Inspect(ctx, id, opts...)
	return in.Fallback, err
}

// Bounds returns the smallest and the largest ID that a time in [from, to) can
// have, for a range scan over a column of IDs.
func (c *Client) Bounds(ctx context.Context, from, to time.Time, opts ...CallOption) (smallest, largest ID, err error) {
	var bounds []int64
	// The daemon counts in milliseconds: round up, so that the one with `to` belongs to
	// the interval.
	end := to.Add(time.Millisecond - 1).UnixMilli()
	if err := c.ofService(ctx, opts, "Bounds", &bounds, from.UnixMilli(), end); err != nil {
		return 0, 0, err
	}
	if len(bounds) != 2 {
		return 0, 0, miscounted(len(bounds), 2)
	}
	return ID(bounds[0]), ID(bounds[1]), nil
}

// ToExternal returns the external ID, made with the service's secret, which the daemon
// knows.
func (c *Client) ToExternal(ctx context.Context, id ID, opts ...CallOption) (external string, err error) {
	err = c.ofService(ctx, opts, "ToExternal", &external, int64(id))
	return external, err
}

// ToInternal returns the ID of an external ID.
func (c *Client) ToInternal(ctx context.Context, external string, opts ...CallOption) (ID, error) {
	id := int64(-1)
	err := c.ofService(ctx, opts, "ToInternal", &id, external)
	if err == nil && id < 0 {
		return 0, protocolError("the answer has the ID %d", id)
	}
	return ID(max(id, 0)), err
}

// UUID returns a UUID of the version that the daemon's configuration names: 7 by default,
// which begins with its time.
func (c *Client) UUID(ctx context.Context) (string, error) { return c.uuid(ctx) }

// UUIDv4 returns a random UUID.
func (c *Client) UUIDv4(ctx context.Context) (string, error) { return c.uuid(ctx, 4) }

func (c *Client) uuid(ctx context.Context, version ...any) (text string, err error) {
	err = c.Call(ctx, "UUID", &text, version...)
	return text, err
}

// Ping checks that the daemon answers.
func (c *Client) Ping(ctx context.Context) error { return c.Call(ctx, "Ping", nil) }

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
