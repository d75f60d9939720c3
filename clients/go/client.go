package kazahana

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

// A Client calls the daemon of this host. It connects at the first call, and again when
// the connection is lost. Any number of goroutines may share it: their calls are
// pipelined over one connection.
type Client struct {
	*channel
	service string
	timeout time.Duration
	ahead   *prefetcher // nil: without
}

// New returns a Client. It does not connect; errors are about the options.
func New(opts ...Option) (*Client, error) {
	s := settings{dial: dialSocket(""), timeout: DefaultTimeout}
	for _, opt := range opts {
		if err := opt(&s); err != nil {
			return nil, err
		}
	}
	c := &Client{channel: newChannel(s.dial, s.single, nil), service: s.service, timeout: s.timeout}
	if s.prefetch > 0 {
		c.ahead = newPrefetcher(s.prefetch, s.maxAge, func(n int) (runs []wire.Range, err error) {
			err = c.call(context.Background(), c.timeout, request{"NextIDs", []any{n}, c.options(nil).ids("")}, &runs)
			if got := total(runs); err == nil && got != n {
				return nil, miscounted(got, n)
			}
			if err == nil {
				err = ascending(runs)
			}
			return runs, err
		})
	}
	return c, nil
}

// Close fails the calls under way with ErrClosed, and closes the connection. Locks that
// the Client took have connections of their own and stay held.
func (c *Client) Close() error {
	c.channel.close()
	if c.ahead != nil {
		c.ahead.close()
	}
	return nil
}

func (c *Client) options(opts []CallOption) callOptions {
	o := callOptions{service: c.service, wait: DefaultResolveWait}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// idOptions are the options of NextID and NextIDs on the wire.
type idOptions struct {
	Service     string `json:"service,omitempty"`
	TimeoutMS   int64  `json:"timeout_ms"`
	Format      string `json:"format,omitempty"`
	RegularOnly bool   `json:"regular_only,omitempty"`
}

// The daemon's time limit is shorter than the call's by this part, and by this much at
// most: the daemon's error says more than a timeout here.
const (
	marginPart = 20
	maxMargin  = 100 * time.Millisecond
)

// maxDaemonWait is the daemon's maximum of timeout_ms.
const maxDaemonWait = time.Hour

func (o callOptions) ids(format string) func(time.Duration) any {
	return func(left time.Duration) any {
		left -= min(left/marginPart, maxMargin)
		left = min(max(left, 0), maxDaemonWait)
		return idOptions{o.service, left.Milliseconds(), format, o.regularOnly}
	}
}

// NextID returns an ID that is greater than every ID of the service that was returned
// before the call. With WithPrefetch it usually comes from memory, and is greater than the
// earlier ones of this Client only.
func (c *Client) NextID(ctx context.Context, opts ...CallOption) (ID, error) {
	if c.ahead != nil && len(opts) == 0 {
		if id, ok := c.ahead.take(); ok {
			return id, nil
		}
		return c.ahead.wait(ctx)
	}
	return c.askID(ctx, opts)
}

// askID is a function of its own to keep the path of prefetched IDs in NextID short.
func (c *Client) askID(ctx context.Context, opts []CallOption) (ID, error) {
	if c.ahead != nil {
		defer c.ahead.drop()
	}
	var id int64
	err := c.call(ctx, c.timeout, request{method: "NextID", options: c.options(opts).ids("")}, &id)
	if err == nil && id <= 0 {
		return 0, impossible(uint64(id))
	}
	return ID(id), err
}

// NextIDs returns n ascending IDs; n is 1 to MaxBatch.
func (c *Client) NextIDs(ctx context.Context, n int, opts ...CallOption) ([]ID, error) {
	if c.ahead != nil {
		defer c.ahead.drop()
	}
	var numbers []uint64
	if err := c.call(ctx, c.timeout, request{"NextIDs", []any{n}, c.options(opts).ids("")}, &numbers); err != nil {
		return nil, err
	}
	if len(numbers) != n {
		return nil, miscounted(len(numbers), n)
	}
	ids := make([]ID, n)
	var last uint64
	for i, number := range numbers {
		if number <= last || number > math.MaxInt64 {
			return nil, impossible(number)
		}
		ids[i], last = ID(number), number
	}
	return ids, nil
}

// ascending returns an error unless every ID of the runs is possible and greater than the
// one before.
func ascending(runs []wire.Range) error {
	var last uint64
	for _, run := range runs {
		if run.Start <= last || run.Start > math.MaxInt64-uint64(run.Count) {
			return impossible(run.Start)
		}
		last = run.Start + uint64(run.Count) - 1
	}
	return nil
}

// incomplete is the error about an answer that lacks a field.
func incomplete(method, field string) error {
	return &Error{Code: ErrProtocol, Message: fmt.Sprintf("the answer to %s has no %s", method, field)}
}

func impossible(id uint64) error {
	return &Error{Code: ErrProtocol, Message: fmt.Sprintf("the answer has the ID %d: IDs are 1 to 2^63-1, and ascend within an answer", id)}
}

func miscounted(got, want int) error {
	return &Error{Code: ErrProtocol, Message: fmt.Sprintf("the answer has %d IDs instead of %d", got, want)}
}

// NextExternalIDs returns n external IDs, in the order of their IDs.
func (c *Client) NextExternalIDs(ctx context.Context, n int, opts ...CallOption) (externals []string, err error) {
	if c.ahead != nil {
		defer c.ahead.drop()
	}
	err = c.call(ctx, c.timeout, request{"NextIDs", []any{n}, c.options(opts).ids("external")}, &externals)
	return externals, err
}

// ofService calls a method whose only option is the service.
func (c *Client) ofService(ctx context.Context, opts []CallOption, method string, result any, params ...any) error {
	if o := c.options(opts); o.service != "" {
		params = append(params, map[string]any{"service": o.service})
	}
	return c.call(ctx, c.timeout, request{method: method, params: params}, result)
}

// Inspect takes an ID apart by the service's present layout. Layout.Inspect works without
// the daemon.
func (c *Client) Inspect(ctx context.Context, id ID, opts ...CallOption) (Inspection, error) {
	var in snowflake.Inspection
	if err := c.ofService(ctx, opts, "Inspect", &in, int64(id)); err != nil {
		return Inspection{}, err
	}
	if in.Time == "" {
		return Inspection{}, incomplete("Inspect", "time")
	}
	return inspection(in), nil
}

// IsFallback reports whether the ID was made while the daemon had no valid lease.
func (c *Client) IsFallback(ctx context.Context, id ID, opts ...CallOption) (bool, error) {
	in, err := c.Inspect(ctx, id, opts...)
	return in.Fallback, err
}

// Bounds returns the smallest and the largest ID that a time in [from, to) can
// have, for a range scan over a column of IDs.
func (c *Client) Bounds(ctx context.Context, from, to time.Time, opts ...CallOption) (smallest, largest ID, err error) {
	var bounds []uint64
	// The daemon counts in milliseconds: round up, so that the one with `to` belongs to
	// the interval.
	end := to.Add(time.Millisecond - 1).UnixMilli()
	if err := c.ofService(ctx, opts, "Bounds", &bounds, from.UnixMilli(), end); err != nil {
		return 0, 0, err
	}
	if len(bounds) != 2 {
		return 0, 0, &Error{Code: ErrProtocol, Message: fmt.Sprintf("the answer has %d bounds instead of 2", len(bounds))}
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
	o := c.options(opts)
	options := map[string]any{}
	if o.service != "" {
		options["service"] = o.service
	}
	if !o.latest.IsZero() {
		options["latest_ms"] = o.latest.UnixMilli()
	}
	var id int64
	err := c.call(ctx, c.timeout, request{method: "ToInternal", params: []any{external, options}}, &id)
	if err == nil && id < 0 {
		return 0, impossible(uint64(id))
	}
	return ID(id), err
}

// UUID returns a UUID of version 7, which begins with its time.
func (c *Client) UUID(ctx context.Context) (string, error) { return c.uuid(ctx, 7) }

// UUIDv4 returns a random UUID.
func (c *Client) UUIDv4(ctx context.Context) (string, error) { return c.uuid(ctx, 4) }

func (c *Client) uuid(ctx context.Context, version int) (text string, err error) {
	err = c.call(ctx, c.timeout, request{method: "UUID", params: []any{version}}, &text)
	return text, err
}

// Ping checks that the daemon answers.
func (c *Client) Ping(ctx context.Context) error {
	return c.call(ctx, c.timeout, request{method: "Ping"}, nil)
}

// NextSequence returns the next value of a sequence.
func (c *Client) NextSequence(ctx context.Context, key string, opts ...CallOption) (value int64, err error) {
	err = c.sequence(ctx, opts, "Sequence.Next", &value, key)
	return value, err
}

// NextSequences returns the next n values of a sequence, ascending; n is 1 to MaxBatch.
func (c *Client) NextSequences(ctx context.Context, key string, n int, opts ...CallOption) (values []int64, err error) {
	err = c.sequence(ctx, opts, "Sequence.NextBatch", &values, key, n)
	return values, err
}

// sequence sends the same request ID with every attempt, so that values are taken once.
func (c *Client) sequence(ctx context.Context, opts []CallOption, method string, result any, params ...any) error {
	id := c.options(opts).requestID
	if id == "" {
		id = newRequestID()
	}
	return c.call(ctx, c.timeout, request{method: method, params: append(params, map[string]any{"request_id": id})}, result)
}

// Call calls any method of the daemon by its name on the wire: see docs/protocol.md. It
// repeats the call when the connection is lost, so the method must be idempotent, by its
// nature or by a request_id among the params. Structs use their json tags; result may be
// nil.
func (c *Client) Call(ctx context.Context, method string, result any, params ...any) error {
	return c.call(ctx, c.timeout, request{method: method, params: params}, result)
}
