package kazahana

import (
	"context"
	"errors"
	"fmt"
	"time"
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
		c.ahead = newPrefetcher(s.prefetch, s.maxAge, func(n int) (runs []run, err error) {
			r := request{method: "NextIDs", count: n, ids: c.options(nil)}
			// Those who wait get the error of the fetch, and not that of their own time.
			if err := c.call(context.Background(), DaemonTime(c.timeout), &r, &runs); err != nil {
				return nil, err
			}
			return runs, miscounted(total(runs), n)
		})
	}
	return c, nil
}

// Close fails the calls under way with ErrClosed, and closes the connection. Those that
// Open returned stay open, and so locks stay held.
func (c *Client) Close() error {
	c.channel.close(nil)
	if c.ahead != nil {
		c.ahead.close()
	}
	return nil
}

// Timeout returns the time limit of a call: see WithTimeout.
func (c *Client) Timeout() time.Duration { return c.timeout }

func (c *Client) options(opts []CallOption) *callOptions {
	o := &callOptions{service: c.service}
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
		return c.ahead.wait(newLimit(ctx, c.timeout))
	}
	return c.askID(ctx, opts)
}

// askID is a function of its own to keep the path of prefetched IDs in NextID short.
func (c *Client) askID(ctx context.Context, opts []CallOption) (id ID, err error) {
	err = c.ask(ctx, 0, "", opts, &id)
	return id, err
}

// ask calls NextIDs or, with a count of 0, NextID.
func (c *Client) ask(ctx context.Context, count int, format string, opts []CallOption, result any) error {
	if c.ahead != nil {
		defer c.ahead.drop()
	}
	r := request{method: "NextID", count: count, ids: c.options(opts), format: format}
	if count != 0 {
		r.method = "NextIDs"
	}
	return c.call(ctx, c.timeout, &r, result)
}

// NextIDs returns n ascending IDs; n is 1 to MaxBatch.
func (c *Client) NextIDs(ctx context.Context, n int, opts ...CallOption) ([]ID, error) {
	return some[ID](ctx, c, n, "", opts)
}

// NextExternalIDs returns n external IDs, in the order of their IDs.
func (c *Client) NextExternalIDs(ctx context.Context, n int, opts ...CallOption) ([]string, error) {
	return some[string](ctx, c, n, "external", opts)
}

func some[T any](ctx context.Context, c *Client, n int, format string, opts []CallOption) (ids []T, err error) {
	if n < 1 || n > MaxBatch {
		return nil, invalid(ErrInvalidParams, "a count of %d is out of range: 1 to %d", n, MaxBatch)
	}
	if err := c.ask(ctx, n, format, opts, &ids); err != nil {
		return nil, err
	}
	return ids, miscounted(len(ids), n)
}

// incomplete is the error about an answer that lacks a field.
func incomplete(method, field string) error {
	return &Error{Code: ErrProtocol, Message: fmt.Sprintf("the answer to %s has no %s", method, field)}
}

func impossible(id ID) error {
	return &Error{Code: ErrProtocol, Message: fmt.Sprintf("the answer has the ID %d: IDs are 1 to 2^63-1, and ascend within an answer", id)}
}

// miscounted returns an error unless the numbers are equal.
func miscounted(got, want int) error {
	if got == want {
		return nil
	}
	return &Error{Code: ErrProtocol, Message: fmt.Sprintf("the answer has %d values instead of %d", got, want)}
}

// ofService calls a method whose only option, beside the given ones, is the service.
func (c *Client) ofService(ctx context.Context, o *callOptions, method string, result any, params ...any) error {
	if o.service != "" {
		params = append(params, map[string]any{"service": o.service})
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
	if err := c.ofService(ctx, c.options(opts), "Inspect", &in, int64(id)); err != nil {
		return Inspection{}, err
	}
	if in.Time == "" {
		return Inspection{}, incomplete("Inspect", "time")
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
	if err := c.ofService(ctx, c.options(opts), "Bounds", &bounds, from.UnixMilli(), end); err != nil {
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
	err = c.ofService(ctx, c.options(opts), "ToExternal", &external, int64(id))
	return external, err
}

// ToInternal returns the ID of an external ID.
func (c *Client) ToInternal(ctx context.Context, external string, opts ...CallOption) (ID, error) {
	o, options := c.options(opts), map[string]any{}
	if o.service != "" {
		options["service"] = o.service
	}
	if !o.latest.IsZero() {
		options["latest_ms"] = o.latest.UnixMilli()
	}
	var id int64
	err := c.Call(ctx, "ToInternal", &id, external, options)
	if err == nil && id < 0 {
		return 0, impossible(ID(id))
	}
	return ID(id), err
}

// UUID returns a UUID of version 7, which begins with its time.
func (c *Client) UUID(ctx context.Context) (string, error) { return c.uuid(ctx, 7) }

// UUIDv4 returns a random UUID.
func (c *Client) UUIDv4(ctx context.Context) (string, error) { return c.uuid(ctx, 4) }

func (c *Client) uuid(ctx context.Context, version int) (text string, err error) {
	err = c.Call(ctx, "UUID", &text, version)
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
	return c.call(ctx, timeout, &request{method: method, params: params}, result)
}

// Open returns a new connection of the caller's own, which does not end with the Client.
// begin makes the first calls on it, and decides: the connection is good when it returns
// nil. When the connection is lost meanwhile, Open repeats it with another one, for as long
// as ctx and the timeout allow. told is called for each notification and each request of
// the daemon, one after another; it must not wait for the connection, and may be nil.
func (c *Client) Open(ctx context.Context, timeout time.Duration, told func(*Conn, *Message), begin func(context.Context, *Conn) error) (*Conn, error) {
	own := newChannel(c.dial, c.single, told)
	var conn *Conn
	err := own.do(ctx, timeout, "Open", func(l limit, one *Conn) error {
		within, cancel := context.WithDeadline(ctx, l.deadline)
		defer cancel()
		conn = one
		err := begin(within, one)
		if err != nil && l.over() && (errors.Is(err, ErrTimeout) || errors.Is(err, context.Canceled)) {
			return errExpired
		}
		return err
	})
	if err != nil {
		conn = nil
	}
	own.close(conn)
	return conn, err
}
