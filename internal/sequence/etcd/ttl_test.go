package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/etcdconn/etcdtest"
	"github.com/kazahana/kazahana/internal/sequence"
)

// noLeases is etcd's part for leases, out of order.
type noLeases struct{ clientv3.Lease }

var errNoLeases = errors.New("no leases today")

func (noLeases) Grant(context.Context, int64) (*clientv3.LeaseGrantResponse, error) {
	return nil, errNoLeases
}

// The TTL is a step before the value. Where it fails, the error says which, and no
// value is taken.
func TestTTLThatIsNotSet(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	ctx := testContext(t)
	r := sequence.Request{Tenant: "default", Key: "k", Count: 1, Options: sequence.DefaultOptions()}
	r.Options.TTL = time.Hour
	working := s.conn.KV.Lease
	s.conn.KV.Lease = noLeases{working}
	_, err := s.Next(ctx, r)
	if !errors.Is(err, sequence.ErrTTL) || !errors.Is(err, errNoLeases) || sequence.IsAnswer(err) {
		t.Errorf("without leases: %v", err)
	}
	forever := r
	forever.Key, forever.Options.TTL = "forever", 0
	if _, err := s.Next(ctx, forever); err != nil {
		t.Errorf("a key without a TTL: %v", err)
	}
	s.conn.KV.Lease = working
	if got, err := s.Next(ctx, r); err != nil || got.First != 1 {
		t.Errorf("with leases: %v, %v", got, err)
	}
}
