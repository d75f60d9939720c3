package kazahana

import (
	"context"
	"time"
)

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
