package locks

import (
	"context"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	tenant = "default"
	owner  = "bench"
	term   = 30 * time.Second
	// callTimeout bounds one request; only a run that fails waits for so long.
	callTimeout = 20 * time.Second
)

// client uses locks and sequences.
type client interface {
	// acquire returns what releases the lock. A client that cannot wait answers
	// errors.ErrUnsupported when it should.
	acquire(ctx context.Context, key string, wait time.Duration) (release func(context.Context) error, err error)
	// next takes so many values and returns the last. A client that cannot take blocks
	// answers errors.ErrUnsupported when it should.
	next(ctx context.Context, key string, count, block int) (int64, error)
}

// inProcess is a program that has the store in itself.
type inProcess struct {
	host      *lock.Host
	sequences sequence.Store
}

func (c inProcess) acquire(ctx context.Context, key string, wait time.Duration) (func(context.Context) error, error) {
	l, err := c.host.Acquire(ctx, lock.Request{Tenant: tenant, Key: key, Owner: owner, TTLMS: term.Milliseconds(), Wait: wait})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := c.host.Change(ctx, lock.Request{Op: lock.Release, Tenant: tenant, Key: key, Owner: owner, LeaseID: l.LeaseID})
		return err
	}, nil
}

func (c inProcess) next(ctx context.Context, key string, count, block int) (int64, error) {
	options := sequence.DefaultOptions()
	options.Block = block
	values, err := c.sequences.Next(ctx, sequence.Request{Tenant: tenant, Key: key, Count: count, RequestID: sequence.NewRequestID(), Options: options})
	return values.Last(), err
}

// throughSocket is a program that asks a daemon.
type throughSocket struct{ conn *wire.Client }

func (c throughSocket) acquire(ctx context.Context, key string, wait time.Duration) (func(context.Context) error, error) {
	var l lock.Answer
	options := map[string]any{"ttl_ms": term.Milliseconds(), "wait_ms": wait.Milliseconds()}
	if err := c.conn.Call(ctx, "Lock.Acquire", &l, key, options); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return c.conn.Call(ctx, "Lock.Release", nil, key, map[string]any{"lease_id": l.LeaseID})
	}, nil
}

func (c throughSocket) next(ctx context.Context, key string, count, block int) (int64, error) {
	options := map[string]any{"block": block, "request_id": sequence.NewRequestID()}
	if count == 1 {
		var value int64
		err := c.conn.Call(ctx, "Sequence.Next", &value, key, options)
		return value, err
	}
	var values []int64
	err := c.conn.Call(ctx, "Sequence.NextBatch", &values, key, count, options)
	if err != nil {
		return 0, err
	}
	return values[len(values)-1], nil
}
