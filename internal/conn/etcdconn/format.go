package etcdconn

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// Format is the version of the keys' layout that this program writes and
	// knows. A store says its own in the key @format below the prefix; without
	// that key, which version 1 does not write, it is 1.
	Format    = "1"
	formatKey = "@format"
	// formatInterval is how long a look at it is good for: a newer kazahanad may
	// bring the store to another format while this one runs.
	formatInterval = 10 * time.Second
)

// format is when this process last found the store to be of a format it knows.
type format struct {
	boot time.Time
	seen atomic.Int64 // after boot, in ns; 0: never
}

// checkFormat fails where the store's keys are of a format that this program does
// not know.
func (c *Client) checkFormat(ctx context.Context) error {
	now := time.Since(c.format.boot)
	if seen := time.Duration(c.format.seen.Load()); seen != 0 && now-seen < formatInterval {
		return nil
	}
	key := c.cfg.Prefix + formatKey
	var resp *clientv3.GetResponse
	err := c.call(ctx, func(ctx context.Context) (err error) {
		resp, err = c.KV.Get(ctx, key)
		return err
	})
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		resp = &clientv3.GetResponse{} // a role for locks alone goes without
	case err != nil:
		return err
	}
	for _, kv := range resp.Kvs {
		if string(kv.Value) != Format {
			return fmt.Errorf("%s: the keys below %s were written by a newer kazahanad (format %.20q in %s, this one knows up to %s): "+
				"upgrade this one, or go back as docs/compatibility.md says", c.cfg.Place(), c.cfg.Prefix, kv.Value, key, Format)
		}
	}
	c.format.seen.Store(max(int64(now), 1))
	return nil
}
