package etcd

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
)

// watchTime is how long etcd may take to begin a watch.
const watchTime = 5 * time.Second

// Notify implements lock.Notifier. It tells of leases that have expired too: the
// marker goes.
func (s *Store) Notify(ctx context.Context, tenant, key string) (<-chan struct{}, error) {
	return s.follow(ctx, s.pathsOf(tenant, key).marker, clientv3.WithFilterPut())
}

// Changes gives a token when a lock whose key has the prefix was acquired, or has
// become free. One token may stand for several such moments. The channel is closed
// when ctx is done or nothing is told any more.
func (s *Store) Changes(ctx context.Context, tenant, prefix string) (<-chan struct{}, error) {
	return s.follow(ctx, s.pathsOf(tenant, prefix).marker, clientv3.WithPrefix())
}

// follow gives a token when a marker comes or goes.
func (s *Store) follow(ctx context.Context, path string, which clientv3.OpOption) (<-chan struct{}, error) {
	if err := s.conn.Usable(ctx); err != nil {
		return nil, err
	}
	if !s.begin() {
		return nil, etcdconn.ErrClosed
	}
	var events clientv3.WatchChan
	var end context.CancelCauseFunc
	startCtx, started := context.WithTimeout(ctx, watchTime)
	err := s.conn.Call(startCtx, func(tryCtx context.Context) (err error) {
		events, end, err = s.watch(ctx, tryCtx, path, which)
		return err
	})
	started()
	if err != nil {
		s.chores.Done()
		return nil, err
	}
	closing := context.AfterFunc(s.lifetime, func() { end(etcdconn.ErrClosed) })
	tokens := make(chan struct{}, 1)
	go func() {
		defer s.chores.Done()
		defer closing()
		defer end(nil)
		defer close(tokens)
		for answer := range events {
			if answer.Err() != nil {
				return
			}
			if !slices.ContainsFunc(answer.Events, func(e *clientv3.Event) bool { return e.Type == clientv3.EventTypeDelete || e.IsCreate() }) {
				continue // a lease was renewed
			}
			select {
			case tokens <- struct{}{}:
			default:
			}
		}
	}()
	return tokens, nil
}

// watch begins a watch that lasts as long as ctx, if it is there before tryCtx
// ends.
func (s *Store) watch(ctx, tryCtx context.Context, path string, which clientv3.OpOption) (clientv3.WatchChan, context.CancelCauseFunc, error) {
	ctx, end := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	late := context.AfterFunc(tryCtx, func() { end(context.Cause(tryCtx)) })
	closing := context.AfterFunc(s.lifetime, func() { end(etcdconn.ErrClosed) })
	defer closing()
	events := s.conn.KV.Watch(ctx, path, which, clientv3.WithCreatedNotify())
	first, ok := <-events
	if late() && ok && first.Created && first.Err() == nil {
		return events, end, nil
	}
	err := rpctypes.Error(first.Err())
	if err == nil {
		err = cmp.Or(context.Cause(ctx), etcdconn.ErrClosed) // a client that is closed ends its watches without a word
	}
	end(nil)
	return nil, nil, err
}
