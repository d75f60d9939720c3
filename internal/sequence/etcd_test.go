package sequence_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/record/etcd"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
)

// inEtcd closes the client with the store.
type inEtcd struct {
	*sequence.Records
	records *etcd.Store
	conn    *etcdconn.Client
}

func (e inEtcd) Close() error { return errors.Join(e.records.Close(), e.conn.Close()) }

func openEtcd(cfg etcdconn.Config) (inEtcd, error) {
	conn, err := etcdconn.Open(cfg)
	if err != nil {
		return inEtcd{}, err
	}
	records := etcd.New(conn, area, nil)
	return inEtcd{sequence.OnRecords(records), records, conn}, nil
}

func TestEtcdConformance(t *testing.T) {
	sequencetest.Run(t, func(t *testing.T) sequencetest.Target {
		cfg := etcdtest.Shared(t)
		raw, err := openEtcd(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { raw.Close() })
		return sequencetest.Target{
			Open: func() (sequence.Store, error) { return openEtcd(cfg) },
			// What the cluster does when the lease's time is over.
			Expire: func(tenant, key string) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				resp, err := raw.conn.KV.Get(ctx, cfg.Prefix+"@store/k/seq/"+tenant+"/"+key)
				if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Lease == 0 {
					t.Fatalf("%s: the record is %v (%v), want one with a lease", key, resp, err)
				}
				if _, err := raw.conn.KV.Revoke(ctx, clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}
