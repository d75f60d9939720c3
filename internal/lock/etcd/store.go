package etcd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/etcdconn"
	"github.com/kazahana/kazahana/internal/lock"
)

const (
	// firstWait and maxWait are between the tries of a call that loses races.
	firstWait = 2 * time.Millisecond
	maxWait   = 100 * time.Millisecond
	// maxChores is how much is done beside the calls; beyond that, callers wait.
	maxChores = 16
	// choreTime bounds one of them.
	choreTime = 5 * time.Second
)

// errOutrun: a transaction may or may not have been carried out before another
// call changed the lock.
var errOutrun = errors.New("the answer of a transaction was lost, and the lock was changed since: nobody can tell whether it was carried out")

// Store is locks in etcd, whose client it does not own.
type Store struct {
	conn   *etcdconn.Client
	prefix string
	nowMS  func() int64 // this host's clock

	lifetime context.Context // ends with Close
	end      context.CancelFunc
	mu       sync.Mutex // held to begin a chore, or to close
	chores   sync.WaitGroup
	slots    chan struct{} // taken by the chores under way

	created   atomic.Int64 // records made by this process
	sweepFrom string       // where the next sweep begins; by the one that holds sweeping
	sweeping  sync.Mutex
}

var (
	_ lock.Store    = (*Store)(nil)
	_ lock.Notifier = (*Store)(nil)
)

// New uses the client, under keys that no pool of leases can have. Whoever
// opened the client closes it, after the store.
func New(conn *etcdconn.Client) *Store {
	s := &Store{
		conn: conn, prefix: conn.Config().Prefix + "@lock/", slots: make(chan struct{}, maxChores),
		nowMS: func() int64 { return time.Now().UnixMilli() },
	}
	s.lifetime, s.end = context.WithCancel(context.Background())
	return s
}

// Close implements lock.Store: it ends what waits. The client stays open.
func (s *Store) Close() error {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.chores.Wait()
	return nil
}

func (s *Store) place() string { return s.conn.Config().Place() }

// Do implements lock.Store.
func (s *Store) Do(ctx context.Context, r lock.Request) (l lock.Lease, err error) {
	if err := r.Validate(); err != nil {
		return lock.Lease{}, err
	}
	c := &change{Store: s, Request: r, paths: s.pathsOf(r.Tenant, r.Key), nonce: rand.Text()}
	k, err := s.read(ctx, c.paths)
	for wait := firstWait; err == nil; {
		now := k.at(s.nowMS(), k.markerRev != 0, k.most())
		state, l, err := lock.Apply(lock.Known{State: k.State, Floor: k.floor}, r, now)
		if err == nil && l.Repeated && l.State == lock.Active {
			var sure bool
			if l, sure, err = s.left(ctx, k, l); err == nil && !sure {
				state, err = lock.State{}, errAgain
			}
		}
		if err == nil && !l.Repeated {
			k, err = c.write(ctx, k, state)
		}
		if !errors.Is(err, errAgain) {
			c.discard(ctx)
			if err != nil {
				l = lock.Lease{}
			}
			return l, err
		}
		if wait, err = pause(ctx, wait); err != nil {
			return lock.Lease{}, fmt.Errorf("%s: others change lock %q all the time: %w", s.place(), r.Key, err)
		}
		_ = state
	}
	return lock.Lease{}, err
}
