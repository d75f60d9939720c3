package etcd

import (
	"cmp"
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/record"
)

// watchTime is how long etcd may take to begin a watch.
const watchTime = 5 * time.Second

// Watch implements record.Store. It tells of every deletion, and of terms that end: then
// the marker goes.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan struct{}, error) {
	if err := cmp.Or(record.ValidatePrefix(prefix), s.conn.Usable(ctx)); err != nil {
		return nil, err
	}
	if !s.begin() {
		return nil, etcdconn.ErrClosed
	}
	var w *watch
	startCtx, started := context.WithTimeout(ctx, watchTime)
	err := s.conn.Call(startCtx, func(tryCtx context.Context) (err error) {
		w, err = s.watch(ctx, tryCtx, prefix)
		return err
	})
	started()
	if err != nil {
		s.tasks.Done()
		return nil, err
	}
	closing := context.AfterFunc(s.lifetime, func() { w.end(etcdconn.ErrClosed) })
	tokens := make(chan struct{}, 1)
	go func() {
		defer s.tasks.Done()
		defer closing()
		defer w.end(nil)
		defer close(tokens)
		for w.next() {
			select {
			case tokens <- struct{}{}:
			default:
			}
		}
	}()
	return tokens, nil
}

// watch is what etcd says of the records with a prefix.
type watch struct {
	store            *Store
	records, markers clientv3.WatchChan
	end              context.CancelCauseFunc
	told             int64 // the latest revision of which a token tells
}

// next waits for something that watchers are told of, and reports whether there is any
// more. Events of one revision, or of one before, have one token.
func (w *watch) next() bool {
	for {
		var answer clientv3.WatchResponse
		var ok bool
		select {
		case answer, ok = <-w.records:
		case answer, ok = <-w.markers:
		}
		if !ok || answer.Err() != nil {
			return false
		}
		before := w.told
		for _, e := range answer.Events {
			if w.store.tells(e) {
				w.told = max(w.told, e.Kv.ModRevision)
			}
		}
		if w.told > before {
			return true
		}
	}
}

// tells reports whether watchers are told of the event. They are told of a damaged one too.
func (s *Store) tells(e *clientv3.Event) bool {
	if e.Type == clientv3.EventTypeDelete {
		return true
	}
	k, err := s.parse("", e.Kv, nil)
	return err != nil || k.Tell
}

// watch begins a watch that lasts as long as ctx, if it is there before tryCtx ends.
func (s *Store) watch(ctx, tryCtx context.Context, prefix string) (*watch, error) {
	ctx, end := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	late := context.AfterFunc(tryCtx, func() { end(context.Cause(tryCtx)) })
	closing := context.AfterFunc(s.lifetime, func() { end(etcdconn.ErrClosed) })
	defer closing()
	begin := func(path string, more ...clientv3.OpOption) (clientv3.WatchChan, error) {
		events := s.conn.KV.Watch(ctx, path, append(more, clientv3.WithPrefix(), clientv3.WithCreatedNotify())...)
		first, ok := <-events
		if ok && first.Created && first.Err() == nil {
			return events, nil
		}
		// A client that is closed ends its watches without a word.
		return nil, cmp.Or(rpctypes.Error(first.Err()), context.Cause(ctx), etcdconn.ErrClosed)
	}
	w := &watch{store: s, end: end}
	var err error
	if w.records, err = begin(s.recordPath(prefix)); err == nil {
		w.markers, err = begin(s.markerPath(prefix), clientv3.WithFilterPut())
	}
	if !late() && err == nil {
		err = context.Cause(tryCtx)
	}
	if err != nil {
		end(nil)
		return nil, err
	}
	return w, nil
}
