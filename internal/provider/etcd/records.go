package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// maxRewrites is how often a release or an extension tries again because the
// record changed under it.
const maxRewrites = 20

// errRaced: the record changed again and again.
var errRaced = errors.New("the lease's record keeps changing; try again")

// replay is the answer to a request that was granted before.
func (a *acquisition) replay(ctx context.Context, st *state) ([]lease.Lease, error) {
	if st.request.Open {
		closed := st.request
		closed.Open = false
		var resp *clientv3.TxnResponse
		err := a.p.conn.Call(ctx, func(ctx context.Context) (err error) {
			resp, err = a.p.conn.KV.Txn(ctx).
				If(clientv3.Compare(clientv3.ModRevision(a.key), "=", st.requestRev)).
				Then(clientv3.OpPut(a.key, encode(closed))).Commit()
			return err
		})
		if err != nil {
			return nil, err
		}
		if !resp.Succeeded {
			return nil, errAgain
		}
	}
	keys := make([]pool.Key, len(st.request.Grants))
	for i, g := range st.request.Grants {
		keys[i] = g.slot()
	}
	slots, err := a.p.slots(ctx, a.pool.keys, keys)
	if err != nil {
		return nil, err
	}
	answered := recordsOf(slots, a.pool.timeline)
	for i, g := range st.request.Grants {
		if answered[i] != nil && answered[i].Lease.Secret != g.Secret {
			answered[i] = nil // granted again since
		}
	}
	return pool.Replay(answered, a.now)
}

// stored is a slot's record with its mod revision, 0 when there is none.
type stored struct {
	record slotRecord
	rev    int64
}

// recordsOf is the records as package pool has them, nil where there is none.
func recordsOf(slots []stored, timeline snowflake.Timeline) []*pool.Record {
	records := make([]*pool.Record, len(slots))
	for i, s := range slots {
		if s.rev != 0 {
			r := s.record.record(timeline)
			records[i] = &r
		}
	}
	return records
}

// slots reads slots, in as few exchanges as etcd allows.
func (p *Provider) slots(ctx context.Context, space space, keys []pool.Key) ([]stored, error) {
	all := make([]stored, 0, len(keys))
	for part := range slices.Chunk(keys, etcdconn.MaxTxnOps) {
		ops := make([]clientv3.Op, len(part))
		for i, key := range part {
			ops[i] = clientv3.OpGet(space.slot(key))
		}
		var resp *clientv3.TxnResponse
		err := p.conn.Call(ctx, func(ctx context.Context) (err error) {
			resp, err = p.conn.KV.Txn(ctx).Then(ops...).Commit()
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, r := range resp.Responses {
			s := stored{}
			for _, kv := range r.GetResponseRange().Kvs {
				if s.record, err = decode[slotRecord](kv.Key, kv.Value); err != nil {
					return nil, fmt.Errorf("%s: %w", p.cfg.Place(), err)
				}
				s.rev = kv.ModRevision
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// poolLevels reads every bit_seq that the pool has records of.
func (p *Provider) poolLevels(ctx context.Context, keys space) (levels []int, rev int64, err error) {
	from := keys.base + "level/"
	var resp *clientv3.GetResponse
	err = p.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = p.conn.KV.Get(ctx, from, clientv3.WithRange(after(from)), clientv3.WithKeysOnly())
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	for _, kv := range resp.Kvs {
		level, err := levelOf(kv.Key)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", p.cfg.Place(), err)
		}
		levels = append(levels, level)
	}
	return levels, resp.Header.Revision, nil
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	terms := p.services.Of(req.Service)
	keys := p.pool(terms).keys
	known := pool.Pool{Exists: true, Timeline: terms.Timeline}
	if req.BitSeq == provider.AnyBitSeq {
		var err error
		if known.Levels, _, err = p.poolLevels(ctx, keys); err != nil {
			return provider.NotSent(err)
		}
	}
	named := known.Named(req)
	if len(named) == 0 {
		return provider.ErrNotFound
	}
	for try := range maxRewrites {
		done, err := p.releaseOnce(ctx, keys, named, terms, req, try == 0)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: %w", p.cfg.Place(), errRaced)
}

// releaseOnce reports whether the release was carried out, or had been before. It
// was not when the record changed between the look at it and the transaction.
func (p *Provider) releaseOnce(ctx context.Context, keys space, named []pool.Key, terms provider.Terms, req provider.ReleaseRequest, first bool) (done bool, err error) {
	slots, err := p.slots(ctx, keys, named)
	if err != nil && first {
		return false, provider.NotSent(err) // a look at the record releases nothing
	}
	if err != nil {
		return false, err
	}
	released, err := pool.Released(req, recordsOf(slots, terms.Timeline), p.nowMS())
	if err != nil || released == nil {
		return true, err
	}
	if err := p.at(stepReleasing); err != nil {
		return false, err
	}
	before := slots[slices.Index(named, released.Key())]
	return p.rewrite(ctx, p.conn.CallOnce, keys, storedOf(*released, before.record.Kept), before.rev)
}

// exchange is Call or CallOnce of the connection.
type exchange func(context.Context, func(context.Context) error) error

// rewrite replaces a slot's record, if nobody else has since the revision, and
// only further things hold.
func (p *Provider) rewrite(ctx context.Context, call exchange, keys space, r slotRecord, rev int64, further ...clientv3.Cmp) (done bool, err error) {
	ifs := append([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(keys.slot(r.key())), "=", rev)}, further...)
	puts := append(keys.putSlot(r), clientv3.OpPut(keys.last(), ""))
	var resp *clientv3.TxnResponse
	err = call(ctx, func(ctx context.Context) (err error) {
		resp, err = p.conn.KV.Txn(ctx).If(ifs...).Then(puts...).Commit()
		return err
	})
	return err == nil && resp.Succeeded, err
}

// Verify implements provider.Provider.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	return pool.Verify(p.reader(ctx, service, nil), false, claims)
}

// Extend implements provider.Provider. The time that it adds must be free of
// others, as for a grant: a host whose clock ran ahead may have been granted an
// overlapping slot of another layout, when the lease had ended by its clock.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	if err := p.begin(ctx); err != nil {
		return lease.Lease{}, err
	}
	terms := p.services.Of(req.Service)
	key, ok := pool.KeyAt(terms.Timeline, req.ID, req.BitSeq)
	if !ok {
		return lease.Lease{}, provider.ErrNotFound
	}
	pl := p.pool(terms)
	longer, err := p.extend(ctx, pl.keys, key, terms, req)
	p.count(ctx, pl, pool.CountedExtend(err))
	return longer, err
}

func (p *Provider) extend(ctx context.Context, keys space, key pool.Key, terms provider.Terms, req provider.ExtendRequest) (lease.Lease, error) {
	for range maxRewrites {
		levels, rev, err := p.poolLevels(ctx, keys)
		if err != nil {
			return lease.Lease{}, err
		}
		marks, own, err := p.overlapping(ctx, keys, key, levels, rev)
		if err != nil {
			return lease.Lease{}, err
		}
		taken := pool.Taken{Own: recordsOf([]stored{own}, terms.Timeline)[0]}
		for _, m := range marks {
			if m.Key != key {
				taken.Others = max(taken.Others, m.End)
			}
		}
		longer, err := pool.Extended(pool.Moment{NowMS: p.nowMS()}, terms, req, taken)
		if err != nil {
			return lease.Lease{}, err
		}
		if err := p.at(stepExtending); err != nil {
			return lease.Lease{}, err
		}
		levelKeys := keys.base + "level/"
		further := append(keys.unchanged(key, levels, basisOf(sorted(marks), key, levels)),
			clientv3.Compare(clientv3.ModRevision(levelKeys).WithRange(after(levelKeys)), "<", rev+1))
		done, err := p.rewrite(ctx, p.conn.Call, keys, storedOf(longer, own.record.Kept), own.rev, further...)
		if err != nil {
			return lease.Lease{}, err
		}
		if done {
			return longer.Shown().Lease, nil
		}
	}
	return lease.Lease{}, fmt.Errorf("%s: %w", p.cfg.Place(), errRaced)
}

// overlapping reads the slot's own record and the marks of all that overlap it, as
// of the revision.
func (p *Provider) overlapping(ctx context.Context, keys space, key pool.Key, levels []int, rev int64) (marks []mark, own stored, err error) {
	slot := key.Slot()
	ops := []clientv3.Op{clientv3.OpGet(keys.slotsFrom(slot.Start), clientv3.WithRange(keys.slotsFrom(slot.End)), clientv3.WithRev(rev))}
	for _, coarser := range key.Coarser(levels) {
		if coarser.Start != slot.Start {
			ops = append(ops, clientv3.OpGet(keys.slot(coarser), clientv3.WithRev(rev)))
		}
	}
	var resp *clientv3.TxnResponse
	err = p.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = p.conn.KV.Txn(ctx).Then(ops...).Commit()
		return err
	})
	if err != nil {
		return nil, stored{}, err
	}
	for _, answer := range resp.Responses {
		for _, kv := range answer.GetResponseRange().Kvs {
			m, err := markOf(keys, kv.Key, kv.Value, kv.ModRevision)
			if err != nil {
				return nil, stored{}, fmt.Errorf("%s: %w", p.cfg.Place(), err)
			}
			marks = append(marks, m)
			if m.Key == key {
				own.rev = kv.ModRevision
				own.record, err = decode[slotRecord](kv.Key, kv.Value)
				if err != nil {
					return nil, stored{}, err
				}
			}
		}
	}
	return marks, own, nil
}

// List implements provider.Provider. It reads page by page, all as of one moment.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	terms := p.services.Of(service)
	var all []provider.Record
	var rev int64
	err := p.eachSlot(ctx, p.pool(terms).keys, &rev, func(kv *mvccpb.KeyValue) (bool, error) {
		r, err := decode[slotRecord](kv.Key, kv.Value)
		all = append(all, r.record(terms.Timeline).Shown())
		return true, err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, provider.CompareRecords)
	return all, nil
}

// Locate implements provider.Provider. It knows the last grants of each slot;
// doc.go says how many.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	levels, _, err := p.poolLevels(ctx, p.pool(p.services.Of(service)).keys)
	if err != nil {
		return nil, err
	}
	return pool.Locate(p.reader(ctx, service, levels), low, atMS)
}

// reader is the pool for rules that write nothing.
type reader struct {
	pool.Reader // what such a rule does not ask is not there
	ctx         context.Context
	p           *Provider
	known       pool.Pool
	keys        space
}

func (p *Provider) reader(ctx context.Context, service string, levels []int) *reader {
	terms := p.services.Of(service)
	return &reader{
		ctx: ctx, p: p, keys: p.pool(terms).keys,
		known: pool.Pool{Exists: true, Timeline: terms.Timeline, Levels: levels},
	}
}

// Pool implements pool.Reader.
func (r *reader) Pool() (pool.Pool, error) { return r.known, nil }

// Records implements pool.Reader.
func (r *reader) Records(keys []pool.Key) ([]*pool.Record, error) {
	slots, err := r.p.slots(r.ctx, r.keys, keys)
	return recordsOf(slots, r.known.Timeline), err
}

// History implements pool.Reader.
func (r *reader) History(keys []pool.Key, _ int64) ([]pool.Record, error) {
	var grants []pool.Record
	for _, key := range keys {
		prefix := r.keys.history(key)
		var resp *clientv3.GetResponse
		err := r.p.conn.Call(r.ctx, func(ctx context.Context) (err error) {
			resp, err = r.p.conn.KV.Get(ctx, prefix, clientv3.WithRange(after(prefix)), clientv3.WithLimit(math.MaxInt16))
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, kv := range resp.Kvs {
			stored, err := decode[slotRecord](kv.Key, kv.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.p.cfg.Place(), err)
			}
			grants = append(grants, stored.record(r.known.Timeline))
		}
	}
	return grants, nil
}
