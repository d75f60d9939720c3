// Package etcd keeps activation records in etcd, for all hosts that use it. A
// record counts when a majority of the members has it on disk.
package etcd

import (
	"bytes"
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
	"github.com/kazahana/kazahana/internal/placement/storage"
)

type cells struct {
	conn   *etcdconn.Client
	prefix string
}

// New uses the client, under keys that no pool of leases can have. Whoever
// opened the client closes it.
func New(conn *etcdconn.Client) storage.Storage {
	return storage.New(&cells{conn, conn.Config().Prefix + "@act/"})
}

// Close implements storage.Cells. The client stays open.
func (c *cells) Close() error { return nil }

// Read implements storage.Cells.
func (c *cells) Read(ctx context.Context, name string) (value []byte, err error) {
	err = c.conn.Call(ctx, func(ctx context.Context) error {
		resp, err := c.conn.KV.Get(ctx, c.prefix+name)
		if err == nil && len(resp.Kvs) == 1 {
			value = resp.Kvs[0].Value
		}
		return err
	})
	return value, err
}

// Swap implements storage.Cells. One that has the new value already was written
// by an attempt whose answer was lost.
func (c *cells) Swap(ctx context.Context, name string, read, next []byte) (done bool, err error) {
	key := c.prefix + name
	same := clientv3.Compare(clientv3.Value(key), "=", string(read))
	if read == nil {
		same = clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	err = c.conn.Call(ctx, func(ctx context.Context) error {
		resp, err := c.conn.KV.Txn(ctx).If(same).Then(clientv3.OpPut(key, string(next))).Else(clientv3.OpGet(key)).Commit()
		done = err == nil && (resp.Succeeded || has(resp.Responses[0].GetResponseRange(), next))
		return err
	})
	return done, err
}

func has(r *etcdserverpb.RangeResponse, value []byte) bool {
	return r != nil && len(r.Kvs) == 1 && bytes.Equal(r.Kvs[0].Value, value)
}
