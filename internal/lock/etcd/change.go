package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/lock"
)

// errOutrun leaves open what became of a call without a request ID.
var errOutrun = errors.New("the answer of a transaction was lost, and the lock was changed since: nobody can tell whether it was carried out")

// change is one request that is carried out.
type change struct {
	*Store
	lock.Request
	paths   paths
	nonce   string // tells what this call wrote from what others did
	known   known
	read    bool             // known is what there was a moment ago
	granted clientv3.LeaseID // an etcd lease that carries nothing; 0: none
	tries   int              // of the transaction under way: all but the last have unknown outcomes
}

// try makes the transition once, from what is known.
func (c *change) try(ctx context.Context) (l lock.Lease, err error) {
	if !c.read {
		if c.known, err = c.Store.read(ctx, c.paths); err != nil {
			return lock.Lease{}, err
		}
	}
	c.read = false
	k := c.known
	now := k.at(c.nowMS(), k.markerRev != 0, k.most())
	state, l, err := lock.Apply(lock.Known{State: k.State, Floor: k.floor}, c.Request, now)
	switch {
	case err != nil:
		return lock.Lease{}, err
	case l.Repeated:
		return c.left(ctx, k, l)
	}
	lease, err := c.leaseFor(ctx)
	if err == nil {
		err = c.write(ctx, state, lease)
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = errAgain // the lock has expired in the meantime
	}
	return l, err
}

// leaseFor is the etcd lease that the marker hangs on from now on.
func (c *change) leaseFor(ctx context.Context) (clientv3.LeaseID, error) {
	if c.Op == lock.Release {
		return 0, nil
	}
	if c.Op == lock.Renew && c.known.Seconds == seconds(c.TTLMS) {
		return c.known.lease, c.conn.Call(ctx, func(ctx context.Context) error {
			_, err := c.conn.KV.KeepAliveOnce(ctx, c.known.lease)
			return err
		})
	}
	if c.granted != 0 {
		// From an earlier try: callers count from before the call.
		return c.granted, nil
	}
	err := c.conn.Call(ctx, func(ctx context.Context) error {
		resp, err := c.conn.KV.Grant(ctx, seconds(c.TTLMS))
		if err == nil {
			c.granted = resp.ID
		}
		return err
	})
	return c.granted, err
}

// write replaces the state if record and marker are still what is known.
func (c *change) write(ctx context.Context, state lock.State, lease clientv3.LeaseID) error {
	ops, err := c.puts(state, lease)
	if err != nil {
		return err
	}
	var resp *clientv3.TxnResponse
	err = c.conn.Call(ctx, func(ctx context.Context) (err error) {
		c.tries++
		resp, err = c.conn.KV.Txn(ctx).If(c.paths.same(c.known)...).Then(ops...).Else(c.paths.gets()...).Commit()
		return err
	})
	if err != nil {
		c.granted = 0 // the marker may hang on it, or it has ended
		if c.tries > 1 && c.RequestID == "" && errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return c.outrun()
		}
		return err
	}
	if resp.Succeeded {
		c.written(ctx, lease)
		return nil
	}
	before, lost := c.known, c.tries > 1
	c.tries = 0 // none of them can be carried out any more
	if c.known, err = c.understand(c.paths, resp.Responses); err != nil {
		return err
	}
	if !lost {
		c.read = true
		return errAgain
	}
	// An earlier try may have been carried out, without an answer.
	if c.known.Writer == c.nonce {
		c.known = before
		c.written(ctx, lease)
		return nil
	}
	c.granted = 0
	if c.RequestID == "" {
		return c.outrun()
	}
	c.read = true // its receipt tells
	return errAgain
}

func (c *change) outrun() error { return fmt.Errorf("%s: lock %q: %w", c.place(), c.Key, errOutrun) }

func (c *change) puts(state lock.State, lease clientv3.LeaseID) ([]clientv3.Op, error) {
	r := record{state, c.nonce, c.known.Seconds}
	if c.Op != lock.Release {
		r.Seconds = seconds(c.TTLMS)
	}
	value, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	put := clientv3.OpPut(c.paths.record, string(value))
	if c.Op == lock.Release {
		return []clientv3.Op{put, clientv3.OpDelete(c.paths.marker)}, nil
	}
	r.Receipts = nil
	marker, err := json.Marshal(r)
	return []clientv3.Op{put, clientv3.OpPut(c.paths.marker, string(marker), clientv3.WithLease(lease))}, err
}

// written is after a transaction that was carried out: lease carries the marker,
// and the one that did before carries nothing.
func (c *change) written(ctx context.Context, lease clientv3.LeaseID) {
	if c.granted == lease {
		c.granted = 0
	}
	if old := c.known.lease; old != 0 && old != lease {
		c.revoke(ctx, old)
	}
	if c.known.rev == 0 && c.created.Add(1)%sweepEvery == 0 {
		c.chore(ctx, func(ctx context.Context) { _, _ = c.sweep(ctx) })
	}
}

// discard ends an etcd lease that was not needed.
func (c *change) discard(ctx context.Context) {
	if c.granted != 0 {
		c.revoke(ctx, c.granted)
	}
}

// revoke ends an etcd lease that carries nothing, and would end by itself.
func (c *change) revoke(ctx context.Context, id clientv3.LeaseID) {
	c.chore(ctx, func(ctx context.Context) {
		_ = c.conn.Call(ctx, func(ctx context.Context) error {
			_, err := c.conn.KV.Revoke(ctx, id)
			return err
		})
	})
}
