package etcd

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/turns"
)

// Store implements record.Store in etcd. It does not own the client.
type Store struct {
	conn   *etcdconn.Client
	area   record.Area
	prefix string
	turns  *turns.Turns[known]
	floor  atomic.Pointer[floor] // as last seen: a hint, like all that is known
	life   atomic.Pointer[life]  // likewise; nil before anything was seen

	nowMS    func() int64
	elapsed  func() time.Duration // counts suspend
	created  atomic.Int64         // records that this process made
	sweeping sync.Mutex           // guards sweepFrom, and that there is one sweep at a time
	// sweepFrom is the key that the next sweep begins with.
	sweepFrom string
	spares    []lease // guarded by mu

	mu       sync.Mutex // guards closed, and that no task begins afterwards
	closed   bool
	lifetime context.Context // ends with Close
	end      context.CancelFunc
	tasks    sync.WaitGroup // watches and sweeps
}

// New uses the client, under keys of the area. The client's owner closes it after the store.
// nowMS is this host's clock in Unix ms; nil: the wall clock.
func New(conn *etcdconn.Client, area record.Area, nowMS func() int64) *Store {
	if nowMS == nil {
		nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	s := &Store{
		conn: conn, area: area, prefix: conn.Config().Prefix + "@" + area.Name + "/", turns: turns.New(known.size),
		nowMS: nowMS, elapsed: clock.System{}.Boot,
	}
	s.lifetime, s.end = context.WithCancel(context.Background())
	return s
}

// Close implements record.Store: it ends watches and sweeps.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.tasks.Wait()
	return nil
}

// begin begins a task, which ends with tasks.Done; not once the store is closed.
func (s *Store) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.tasks.Add(1)
	}
	return !s.closed
}

// Read implements record.Store.
func (s *Store) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	if err := ask.Validate(); err != nil {
		return record.View{}, err
	}
	for again := false; ; again = true {
		seen, err := s.see(ctx, ask)
		if err == nil {
			err = s.time(ctx, &seen, again)
		}
		if err == nil {
			return seen.view(s.nowMS()), nil
		}
		if !errors.Is(err, errEnded) {
			return record.View{}, err
		}
	}
}

// errEnded: a term has ended since it was seen.
var errEnded = errors.New("a term has ended")

// time asks etcd how much is left of the terms that run. The marker of an ended lease is
// there until etcd removes it: again says that the record was read once more since, and
// then the term has a moment left.
func (s *Store) time(ctx context.Context, seen *sight, again bool) error {
	for i := range seen.records {
		k := &seen.records[i]
		if !k.runs() {
			continue
		}
		var resp *clientv3.LeaseTimeToLiveResponse
		err := s.conn.Call(ctx, func(ctx context.Context) (err error) {
			resp, err = s.conn.KV.TimeToLive(ctx, k.lease)
			return err
		})
		ended := errors.Is(err, rpctypes.ErrLeaseNotFound) || err == nil && resp.TTL < 0
		switch {
		case ended && !again:
			return errEnded
		case ended:
			k.mostMS = 1
		case err != nil:
			return err
		default:
			k.mostMS = max(resp.TTL*1000, 1)
		}
	}
	seen.timed = true
	return nil
}

// see reads all that the ask names. A fence lasts as long as this process grants by then.
func (s *Store) see(ctx context.Context, ask record.Ask) (sight, error) {
	for {
		resp, err := s.get(ctx, s.gets(ask)...)
		if err != nil {
			return sight{}, err
		}
		seen, err := s.understand(ask, resp.Header, resp.Responses)
		if err != nil || !s.short(seen.life) {
			return seen, err
		}
		if err := s.lengthen(ctx); err != nil {
			return sight{}, err
		}
	}
}

// get reads at one revision.
func (s *Store) get(ctx context.Context, ops ...clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = s.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = s.conn.KV.Txn(ctx).Then(ops...).Commit()
		return err
	})
	return resp, err
}

// List implements record.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	if err := record.ValidatePage(prefix, after, limit); err != nil {
		return nil, err
	}
	from := prefix
	if after >= prefix {
		from = after + "\x00"
	}
	all, err := s.page(ctx, from, prefix, limit)
	if err != nil {
		return nil, err
	}
	var page []record.Head
	for k, err := range all {
		if err != nil {
			return nil, err
		}
		page = append(page, record.HeadOf(k.key, k.record(s.nowMS())))
	}
	return page, nil
}

// page reads the records under the prefix, with their markers, from one key on. A damaged record
// has an error, and its key.
func (s *Store) page(ctx context.Context, from, prefix string, limit int) (iter.Seq2[known, error], error) {
	part := func(path func(string) string) clientv3.Op {
		return clientv3.OpGet(path(from), clientv3.WithRange(clientv3.GetPrefixRangeEnd(path(prefix))), clientv3.WithLimit(int64(limit)))
	}
	// The first so many markers include those of the first so many records.
	resp, err := s.get(ctx, part(s.recordPath), part(s.markerPath))
	if err != nil {
		return nil, err
	}
	records, markers := resp.Responses[0].GetResponseRange().Kvs, resp.Responses[1].GetResponseRange().Kvs
	return func(yield func(known, error) bool) {
		for _, kv := range records {
			key := string(kv.Key[len(s.recordPath("")):])
			var marker *mvccpb.KeyValue
			if len(markers) > 0 && string(markers[0].Key) == s.markerPath(key) {
				marker, markers = markers[0], markers[1:]
			}
			k, err := s.parse(key, kv, marker)
			k.key = key
			if !yield(k, err) {
				return
			}
		}
	}, nil
}

// hints returns the life and the floor as last seen; zero values before that.
func (s *Store) hints() (l life, f floor) {
	return *cmp.Or(s.life.Load(), new(life)), *cmp.Or(s.floor.Load(), &floor{})
}
