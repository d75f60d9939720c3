package etcd

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
	"github.com/kazahana/kazahana/internal/record"
)

// watchTime is how long etcd may take to begin a watch.
const watchTime = 5 * time.Second

// Watch implements record.Store. It tells of every deletion.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan struct{}, error) {
	if err := cmp.Or(record.ValidatePrefix(prefix), s.conn.Usable(ctx)); err != nil {
		return nil, err
	}
	if !s.begin() {
		return nil, etcdconn.ErrClosed
	}
	var events clientv3.WatchChan
	var end context.CancelCauseFunc
	startCtx, started := context.WithTimeout(ctx, watchTime)
	err := s.conn.Call(startCtx, func(tryCtx context.Context) (err error) {
		events, end, err = s.watch(ctx, tryCtx, s.recordPath(prefix))
		return err
	})
	started()
	if err != nil {
		s.tasks.Done()
		return nil, err
	}
	closing := context.AfterFunc(s.lifetime, func() { end(etcdconn.ErrClosed) })
	tokens := make(chan struct{}, 1)
	go func() {
		defer s.tasks.Done()
		defer closing()
		defer end(nil)
		defer close(tokens)
		for answer := range events {
			if answer.Err() != nil {
				return
			}
			if !slices.ContainsFunc(answer.Events, s.tells) {
				continue
			}
			select {
			case tokens <- struct{}{}:
			default:
			}
		}
	}()
	return tokens, nil
}

// tells reports whether watchers are told of the event. One that cannot be read is none
// too few.
func (s *Store) tells(e *clientv3.Event) bool {
	if e.Type == clientv3.EventTypeDelete {
		return true
	}
	k, err := s.parse("", e.Kv, nil)
	return err != nil || k.Tell
}

// watch begins a watch that lasts as long as ctx, if it is there before tryCtx ends.
func (s *Store) watch(ctx, tryCtx context.Context, path string) (clientv3.WatchChan, context.CancelCauseFunc, error) {
	ctx, end := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	late := context.AfterFunc(tryCtx, func() { end(context.Cause(tryCtx)) })
	closing := context.AfterFunc(s.lifetime, func() { end(etcdconn.ErrClosed) })
	defer closing()
	events := s.conn.KV.Watch(ctx, path, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
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
