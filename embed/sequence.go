package embed

import (
	"context"

	"github.com/kazahana/kazahana/internal/sequence"
)

// localTenant is the tenant of a daemon's clients: programs that share a store share the
// keys.
const localTenant = "default"

// A SequenceOption is an option of one request for values of a sequence.
type SequenceOption func(*sequence.Request)

// WithRequestID makes the request safe to repeat: a repeated one gets the same values, if it is
// one of the last 128 of the key, and new ones later. The ID is 1 to 128 visible ASCII
// characters, unique for the key, best random.
func WithRequestID(id string) SequenceOption { return func(r *sequence.Request) { r.RequestID = id } }

// NextSequence returns the next value of a key: 1, 2, 3, ... unless Config.Sequences says
// otherwise. The values ascend among all programs and daemons that use the store. Unlike
// NextID, it asks the store each time, for Config.ProviderTimeout at most, unless the key
// has a Block. A key is 1 to 512 bytes of UTF-8 without control characters.
//
// Errors: ErrNoStore; ErrStoreUnavailable, after which the value may have been taken:
// repeat the request with the same WithRequestID, or leave a gap; *SequenceExhaustedError; ErrStoreFull;
// *SequenceFencedError; ErrRequestIDReused; ErrInvalidParams; ErrClosed; ctx's error.
func (g *Generator) NextSequence(ctx context.Context, key string, opts ...SequenceOption) (int64, error) {
	values, err := g.sequence(ctx, key, 1, opts)
	return values.First, err
}

// NextSequences returns the next n values of a key in ascending order; n is 1 to MaxBatch.
// Its errors are those of NextSequence.
func (g *Generator) NextSequences(ctx context.Context, key string, n int, opts ...SequenceOption) ([]int64, error) {
	if n < 1 || n > MaxBatch {
		return nil, outOfRange(n)
	}
	values, err := g.sequence(ctx, key, n, opts)
	if err != nil {
		return nil, err
	}
	return values.Values(), nil
}

func (g *Generator) sequence(ctx context.Context, key string, n int, opts []SequenceOption) (sequence.Range, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	keyedStores := g.issuer.KeyedStores
	switch {
	case g.closed || g.life.Err() != nil:
		return sequence.Range{}, ErrClosed
	case keyedStores == nil:
		return sequence.Range{}, ErrNoStore
	case ctx.Err() != nil:
		return sequence.Range{}, ctx.Err()
	}
	r := sequence.Request{Tenant: localTenant, Key: key, Count: n, RequestID: sequence.NewRequestID()}
	r.Options, _ = keyedStores.Options(key)
	for _, opt := range opts {
		opt(&r)
	}
	within, cancel := context.WithTimeout(ctx, keyedStores.Timeout)
	defer cancel()
	defer context.AfterFunc(g.life, cancel)()
	values, err := keyedStores.Sequences.Next(within, r)
	switch {
	case err == nil:
		return values, nil
	case g.life.Err() != nil:
		return sequence.Range{}, ErrClosed
	case ctx.Err() != nil:
		return sequence.Range{}, ctx.Err()
	}
	return sequence.Range{}, sequenceError(err)
}
