package etcd

import (
	"context"
	"errors"
	"math"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// maxRewrites is how often a release or an extension tries again because the
	// record changed under it.
	maxRewrites = 20
	// listPage is how many records List reads at a time.
	listPage = 1000
)

// errRaced: the record changed again and again.
var errRaced = errors.New("the lease's record keeps changing; try again")

// replay is the answer to a request that was granted before.
func (a *acquisition) replay(ctx context.Context, st *state) ([]lease.Lease, error) {
	if st.request.Open {
		closed := st.request
		closed.Open = false
		resp, err := a.p.conn.Commit(ctx, etcdconn.Txn{
			If:   []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(a.key), "=", st.requestRev)},
			Then: []clientv3.Op{clientv3.OpPut(a.key, encode(closed))},
		})
		if err != nil {
			return nil, err
		}
		if !resp.Succeeded {
			return nil, errAgain
		}
	}
	answered, err := a.p.answered(ctx, a.pool, st.request.Grants)
	if err != nil {
		return nil, err
	}
	return pool.Replay(answered, a.now)
}

// answered is the records of the grants, nil for one that was granted again since.
func (p *Provider) answered(ctx context.Context, pl *knownPool, grants []grantRecord) ([]*pool.Record, error) {
	keys := make([]pool.Key, len(grants))
	for i, g := range grants {
		keys[i] = g.slot()
	}
	slots, err := p.slots(ctx, pl.keys, keys)
	if err != nil {
		return nil, err
	}
	records := recordsOf(slots, pl.timeline)
	for i, g := range grants {
		if records[i] != nil && records[i].Lease.Secret != g.Secret {
			records[i] = nil
		}
	}
	return records, nil
}

// recordsOf is the records as package pool has them, nil where there is none.
func recordsOf(slots []stored, timeline snowflake.Timeline) []*pool.Record {
	records := make([]*pool.Record, len(slots))
	for i, s := range slots {
		if s.rev != 0 {
			records[i] = new(s.record.record(timeline))
		}
	}
	return records
}

// slots reads slots, in as few exchanges as etcd allows.
func (p *Provider) slots(ctx context.Context, space space, keys []pool.Key) ([]stored, error) {
	all := make([]stored, 0, len(keys))
	for part := range slices.Chunk(keys, etcdconn.MaxTxnOps) {
		var t etcdconn.Txn
		for _, key := range part {
			t.Then = append(t.Then, clientv3.OpGet(space.slot(key)))
		}
		resp, err := p.conn.Commit(ctx, t)
		if err != nil {
			return nil, err
		}
		for _, r := range resp.Responses {
			found, err := p.slotsOf(space, r.GetResponseRange().Kvs)
			if err != nil {
				return nil, err
			}
			all = append(all, append(found, stored{})[0])
		}
	}
	return all, nil
}

// page reads records from one key to another, in the order of keys.
func (p *Provider) page(ctx context.Context, keys space, from, to string, limit int, rev int64) (page []stored, more bool, err error) {
	resp, err := p.conn.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(int64(limit)), clientv3.WithRev(rev))
	if err != nil {
		return nil, false, err
	}
	page, err = p.slotsOf(keys, resp.Kvs)
	return page, resp.More && len(page) > 0, err
}

// poolLevels reads every bit_seq that the pool has records of.
func (p *Provider) poolLevels(ctx context.Context, keys space) (levels []int, rev int64, err error) {
	resp, err := p.conn.Get(ctx, keys.levels(), clientv3.WithRange(after(keys.levels())), clientv3.WithKeysOnly())
	if err != nil {
		return nil, 0, err
	}
	levels, err = levelsOf(resp.Kvs)
	return levels, resp.Header.Revision, p.explain(err)
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	terms := p.services.Of(req.Service)
	pl := p.pool(terms)
	known := pool.Pool{Exists: true, Timeline: terms.Timeline}
	if req.BitSeq == provider.AnyBitSeq {
		var err error
		if known.Levels, _, err = p.poolLevels(ctx, pl.keys); err != nil {
			return provider.NotSent(err)
		}
	}
	named := known.Named(req)
	if len(named) == 0 {
		return provider.ErrNotFound
	}
	for try := range maxRewrites {
		done, err := p.releaseOnce(ctx, pl, named, req, try == 0)
		if done || err != nil {
			return err
		}
	}
	return p.explain(errRaced)
}

// releaseOnce reports whether the release was carried out, or had been before. It
// was not when the record changed between the look at it and the transaction.
func (p *Provider) releaseOnce(ctx context.Context, pl *knownPool, named []pool.Key, req provider.ReleaseRequest, first bool) (done bool, err error) {
	slots, err := p.slots(ctx, pl.keys, named)
	if err != nil && first {
		return false, provider.NotSent(err) // a look at the record releases nothing
	}
	if err != nil {
		return false, err
	}
	now := p.nowMS()
	released, err := pool.Released(req, recordsOf(slots, pl.timeline), now)
	if err != nil || released == nil {
		return true, err
	}
	if err := p.at(stepReleasing); err != nil {
		return false, err
	}
	done, err = p.rewrite(ctx, p.conn.CommitOnce, pl, *released, slots[slices.Index(named, released.Key())])
	if done && released.End <= now {
		pl.dropQueues() // it may come before what is in them
	}
	return done, err
}

// rewrite replaces a slot's record, if nobody else has since it was read, and only if
// further things hold.
func (p *Provider) rewrite(ctx context.Context, commit func(context.Context, etcdconn.Txn) (*clientv3.TxnResponse, error),
	pl *knownPool, r pool.Record, before stored, further ...clientv3.Cmp) (done bool, err error) {
	return pl.change(func() (bool, error) {
		resp, err := commit(ctx, etcdconn.Txn{
			If:   append([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(pl.keys.slot(r.Key())), "=", before.rev)}, further...),
			Then: append(pl.keys.putSlot(storedOf(r, before.record.Kept)), clientv3.OpPut(pl.keys.last(), "")),
		})
		return err == nil && resp.Succeeded, err
	})
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
	longer, err := p.extend(ctx, pl, key, terms, req)
	p.count(ctx, pl, pool.CountedExtend(err))
	return longer, err
}

func (p *Provider) extend(ctx context.Context, pl *knownPool, key pool.Key, terms provider.Terms, req provider.ExtendRequest) (lease.Lease, error) {
	for range maxRewrites {
		levels, rev, err := p.poolLevels(ctx, pl.keys)
		if err != nil {
			return lease.Lease{}, err
		}
		marks, own, err := p.overlapping(ctx, pl.keys, key, levels, rev)
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
		further := []clientv3.Cmp{keyRange{pl.keys.levels(), after(pl.keys.levels()), rev}.unchanged()}
		for _, r := range pl.keys.overlapping(key, levels, basisOf(marks, key, levels)) {
			further = append(further, r.unchanged())
		}
		done, err := p.rewrite(ctx, p.conn.Commit, pl, longer, own, further...)
		if err != nil {
			return lease.Lease{}, err
		}
		if done {
			return longer.Shown().Lease, nil
		}
	}
	return lease.Lease{}, p.explain(errRaced)
}

// overlapping reads the slot's own record and the marks of all that overlap it, as
// of the revision, in order.
func (p *Provider) overlapping(ctx context.Context, keys space, key pool.Key, levels []int, rev int64) (marks []mark, own stored, err error) {
	slot := key.Slot()
	inside := clientv3.OpGet(keys.slotsFrom(slot.Start), clientv3.WithRange(keys.slotsFrom(slot.End)), clientv3.WithRev(rev))
	resp, err := p.conn.Commit(ctx, etcdconn.Txn{Then: append(keys.containing(key, levels, rev), inside)})
	if err != nil {
		return nil, stored{}, err
	}
	for _, answer := range resp.Responses {
		found, err := p.slotsOf(keys, answer.GetResponseRange().Kvs)
		if err != nil {
			return nil, stored{}, err
		}
		for _, s := range found {
			marks = append(marks, s.mark())
			if s.record.key() == key {
				own = s
			}
		}
	}
	slices.SortFunc(marks, compareMarks)
	return marks, own, nil
}

// List implements provider.Provider. It reads page by page, all as of one moment.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	terms := p.services.Of(service)
	keys := p.pool(terms).keys
	// A page tells no revision; the state of the levels has one.
	_, rev, err := p.poolLevels(ctx, keys)
	var all []provider.Record
	from, more := keys.slots(), true
	for more && err == nil {
		var page []stored
		page, more, err = p.page(ctx, keys, from, after(keys.slots()), listPage, rev)
		for _, s := range page {
			all = append(all, s.record.record(terms.Timeline).Shown())
			from = keys.slot(s.record.key()) + "\x00"
		}
	}
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
		resp, err := r.p.conn.Get(r.ctx, prefix, clientv3.WithRange(after(prefix)), clientv3.WithLimit(math.MaxInt16))
		if err != nil {
			return nil, err
		}
		for _, kv := range resp.Kvs {
			grant, err := decode[slotRecord](kv.Key, kv.Value)
			if err != nil {
				return nil, r.p.explain(err)
			}
			grants = append(grants, grant.record(r.known.Timeline))
		}
	}
	return grants, nil
}
