package kazahana

import "context"

// NextSequence returns the next value of a sequence.
func (c *Client) NextSequence(ctx context.Context, key string, opts ...CallOption) (value int64, err error) {
	err = c.sequence(ctx, opts, "Sequence.Next", &value, key)
	return value, err
}

// NextSequences returns the next n values of a sequence, ascending; n is 1 to MaxBatch.
func (c *Client) NextSequences(ctx context.Context, key string, n int, opts ...CallOption) (values []int64, err error) {
	if err = c.sequence(ctx, opts, "Sequence.NextBatch", &values, key, n); err != nil {
		return nil, err
	}
	return values, miscounted(len(values), n)
}

// sequence sends the same request ID with every attempt, so that values are taken once.
func (c *Client) sequence(ctx context.Context, opts []CallOption, method string, result any, params ...any) error {
	id := c.options(opts)["request_id"]
	if id == nil {
		id = newRequestID()
	}
	return c.Call(ctx, method, result, append(params, map[string]any{"request_id": id})...)
}
