package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
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
func (s *Store) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if err := r.Validate(); err != nil {
		return lock.Lease{}, err
	}
	c := &change{Store: s, Request: r, paths: s.pathsOf(r.Tenant, r.Key), nonce: rand.Text()}
	defer c.discard(ctx)
	return again(ctx, s, r.Key, c.try)
}

// Get implements lock.Store.
func (s *Store) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	if err := lock.CheckKey(tenant, key); err != nil {
		return lock.Lease{}, err
	}
	return again(ctx, s, key, func(ctx context.Context) (lock.Lease, error) {
		k, err := s.read(ctx, s.pathsOf(tenant, key))
		if err != nil {
			return lock.Lease{}, err
		}
		if k.rev == 0 {
			return lock.Lease{}, lock.ErrNotFound
		}
		l := k.Lease(tenant, key, k.at(s.nowMS(), k.markerRev != 0, k.most()))
		return s.left(ctx, k, l)
	})
}

// List implements lock.Store. What is held has a marker, and it tells enough.
func (s *Store) List(ctx context.Context, tenant, after string, limit int) ([]lock.Lease, error) {
	if err := lock.CheckPage(tenant, after, limit); err != nil {
		return nil, err
	}
	prefix := s.markersOf(tenant)
	from := prefix + after
	if after != "" {
		from += "\x00"
	}
	var resp *clientv3.GetResponse
	err := s.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = s.conn.KV.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(int64(limit)))
		return err
	})
	if err != nil {
		return nil, err
	}
	var page []lock.Lease
	for _, kv := range resp.Kvs {
		r, err := s.parse(kv)
		if err != nil {
			return nil, err
		}
		page = append(page, r.Lease(tenant, string(kv.Key[len(prefix):]), r.at(s.nowMS(), true, r.most())))
	}
	return page, nil
}

func (s *Store) read(ctx context.Context, p paths) (known, error) {
	var resp *clientv3.TxnResponse
	err := s.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = s.conn.KV.Txn(ctx).Then(p.gets()...).Commit()
		return err
	})
	if err != nil {
		return known{}, err
	}
	return s.understand(p, resp.Responses)
}

// left bounds what is left of a lease by what etcd says, where that matters: the
// answer may be its holder's, and this host's clock may be wrong.
func (s *Store) left(ctx context.Context, k known, l lock.Lease) (lock.Lease, error) {
	if l.State != lock.Active {
		return l, nil
	}
	var resp *clientv3.LeaseTimeToLiveResponse
	err := s.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = s.conn.KV.TimeToLive(ctx, k.lease)
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) || err == nil && resp.TTL < 0 {
		return lock.Lease{}, errAgain // it has ended since
	}
	if err != nil {
		return lock.Lease{}, err
	}
	l.RemainingMS = max(min(l.RemainingMS, resp.TTL*1000), 1)
	return l, nil
}

// errAgain: what was read is no more; the call reads again.
var errAgain = errors.New("the lock was changed")

// again calls f until it says something else than errAgain.
func again(ctx context.Context, s *Store, key string, f func(context.Context) (lock.Lease, error)) (lock.Lease, error) {
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		l, err := f(ctx)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, errAgain) {
			return lock.Lease{}, err
		}
		timer := time.NewTimer(wait/2 + mathrand.N(wait/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return lock.Lease{}, fmt.Errorf("%s: other hosts change lock %q all the time: %w", s.place(), key, ctx.Err())
		}
	}
}

// chore does something beside the calls that need not be done: in the caller's
// time where too many are under way.
func (s *Store) chore(ctx context.Context, f func(context.Context)) {
	if !s.begin() {
		return
	}
	select {
	case s.slots <- struct{}{}:
		go func() {
			defer s.chores.Done()
			defer func() { <-s.slots }()
			ctx, cancel := context.WithTimeout(s.lifetime, choreTime)
			defer cancel()
			f(ctx)
		}()
	default:
		defer s.chores.Done()
		f(ctx)
	}
}

// begin counts what Close waits for, unless the store is closed.
func (s *Store) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lifetime.Err() != nil {
		return false
	}
	s.chores.Add(1)
	return true
}
