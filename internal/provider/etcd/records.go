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
	keys := make([]string, len(st.request.Grants))
	for i, g := range st.request.Grants {
		keys[i] = a.pool.keys.slot(g.ID<<g.BitSeq, g.BitSeq)
	}
	slots, err := a.p.slots(ctx, keys)
	if err != nil {
		return nil, err
	}
	var leases []lease.Lease
	for i, g := range st.request.Grants {
		r := slots[i].record
		if slots[i].rev == 0 || r.Secret != g.Secret || r.Released || a.now >= r.Expired {
			return nil, provider.ErrConflict
		}
		leases = append(leases, a.terms.WithBitSeq(g.BitSeq).Lease(g.ID, r.Created, r.Expired, r.End, r.Secret))
	}
	return leases, nil
}

// stored is a slot's record with its mod revision, 0 when there is none.
type stored struct {
	record slotRecord
	rev    int64
}

// slots reads the keys of slots, in as few exchanges as etcd allows.
func (p *Provider) slots(ctx context.Context, keys []string) ([]stored, error) {
	all := make([]stored, 0, len(keys))
	for part := range slices.Chunk(keys, etcdconn.MaxTxnOps) {
		ops := make([]clientv3.Op, len(part))
		for i, key := range part {
			ops[i] = clientv3.OpGet(key)
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
	keys := p.pool(terms.Pool).keys
	levels := []int{req.BitSeq}
	if req.BitSeq == provider.AnyBitSeq {
		var err error
		if levels, _, err = p.poolLevels(ctx, keys); err != nil {
			return provider.NotSent(err)
		}
	}
	// A slot that cannot be in the pool's layout is none.
	levels = slices.DeleteFunc(levels, func(level int) bool {
		return !terms.HasSlot(req.ID, level)
	})
	if len(levels) == 0 {
		return provider.ErrNotFound
	}
	for try := range maxRewrites {
		done, err := p.releaseOnce(ctx, keys, levels, req, try == 0)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: %w", p.cfg.Place(), errRaced)
}

// releaseOnce reports whether the release was carried out, or had been before. It
// was not when the record changed between the look at it and the transaction.
func (p *Provider) releaseOnce(ctx context.Context, keys space, levels []int, req provider.ReleaseRequest, first bool) (done bool, err error) {
	names := make([]string, len(levels))
	for i, level := range levels {
		names[i] = keys.slot(req.ID<<level, level)
	}
	slots, err := p.slots(ctx, names)
	if err != nil && first {
		return false, provider.NotSent(err) // a look at the record releases nothing
	}
	if err != nil {
		return false, err
	}
	notOurs := provider.ErrNotFound
	for _, s := range slots {
		if s.rev == 0 {
			continue
		}
		if !req.Signed(s.record.Secret) {
			notOurs = provider.ErrBadSignature
			continue
		}
		if err := req.CheckTime(p.nowMS(), s.record.Expired); err != nil || s.record.Released {
			return true, err
		}
		r := s.record
		r.End, r.Released = provider.ReleasedEnd(r.Created, r.End, req.TimestampMS), true
		if err := p.at(stepReleasing); err != nil {
			return false, err
		}
		return p.rewrite(ctx, p.conn.CallOnce, keys, r, s.rev)
	}
	return false, notOurs
}

// exchange is Call or CallOnce of the connection.
type exchange func(context.Context, func(context.Context) error) error

// rewrite replaces a slot's record, if nobody else has since the revision, and
// only further things hold.
func (p *Provider) rewrite(ctx context.Context, call exchange, keys space, r slotRecord, rev int64, further ...clientv3.Cmp) (done bool, err error) {
	ifs := append([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(keys.slot(r.start(), r.BitSeq)), "=", rev)}, further...)
	puts := append(keys.putSlot(r), clientv3.OpPut(keys.last(), ""))
	var resp *clientv3.TxnResponse
	err = call(ctx, func(ctx context.Context) (err error) {
		resp, err = p.conn.KV.Txn(ctx).If(ifs...).Then(puts...).Commit()
		return err
	})
	return err == nil && resp.Succeeded, err
}

// Verify implements provider.Verifier.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	terms := p.services.Of(service)
	keys := p.pool(terms.Pool).keys
	names := make([]string, len(claims))
	for i, c := range claims {
		names[i] = keys.slot(c.ID<<max(c.BitSeq, 0), c.BitSeq)
	}
	slots, err := p.slots(ctx, names)
	if err != nil {
		return nil, err
	}
	for i, c := range claims {
		if s := slots[i]; s.rev == 0 || !terms.HasSlot(c.ID, c.BitSeq) || !c.Signed(s.record.Secret) || s.record.Released {
			lost = append(lost, i)
		}
	}
	return lost, nil
}

// Extend implements provider.Extender. The time that it adds must be free of
// others, as for a grant: a host whose clock ran ahead may have been granted an
// overlapping slot of another layout, when the lease had ended by its clock.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	if err := p.begin(ctx); err != nil {
		return lease.Lease{}, err
	}
	terms := p.services.Of(req.Service)
	if !terms.HasSlot(req.ID, req.BitSeq) {
		return lease.Lease{}, provider.ErrNotFound
	}
	pl := p.pool(terms.Pool)
	longer, err := p.extend(ctx, pl.keys, terms, req)
	p.countExtend(ctx, pl, err)
	return longer, err
}

func (p *Provider) extend(ctx context.Context, keys space, terms provider.Terms, req provider.ExtendRequest) (lease.Lease, error) {
	l := terms.WithBitSeq(req.BitSeq).Lease(req.ID, 0, 0, 0, "") // for its slot
	for range maxRewrites {
		levels, rev, err := p.poolLevels(ctx, keys)
		if err != nil {
			return lease.Lease{}, err
		}
		marks, s, err := p.overlapping(ctx, keys, l, levels, rev)
		if err != nil {
			return lease.Lease{}, err
		}
		now := p.nowMS()
		r := s.record
		switch {
		case s.rev == 0:
			return lease.Lease{}, provider.ErrNotFound
		case !req.Signed(r.Secret):
			return lease.Lease{}, provider.ErrBadSignature
		case r.Released || now >= r.Expired:
			return lease.Lease{}, provider.ErrConflict
		}
		for _, m := range marks {
			if (m.start != r.start() || m.bitSeq != r.BitSeq) && m.end > now {
				return lease.Lease{}, provider.ErrConflict
			}
		}
		if err := terms.CheckClock(now); err != nil {
			return lease.Lease{}, err
		}
		r.Expired, r.End = req.Extended(terms, now, r.Expired, r.End)
		if err := p.at(stepExtending); err != nil {
			return lease.Lease{}, err
		}
		levelKeys := keys.base + "level/"
		slices.SortFunc(marks, compareMarks)
		further := append(keys.unchanged(l.BitSeq, l.ID, levels, basisOf(marks, l.BitSeq, l.ID, levels)),
			clientv3.Compare(clientv3.ModRevision(levelKeys).WithRange(after(levelKeys)), "<", rev+1))
		done, err := p.rewrite(ctx, p.conn.Call, keys, r, s.rev, further...)
		if err != nil {
			return lease.Lease{}, err
		}
		if done {
			return terms.WithBitSeq(l.BitSeq).Lease(r.ID, r.Created, r.Expired, r.End, ""), nil
		}
	}
	return lease.Lease{}, fmt.Errorf("%s: %w", p.cfg.Place(), errRaced)
}

// overlapping reads the lease's own record and the marks of all that overlap
// it, as of the revision.
func (p *Provider) overlapping(ctx context.Context, keys space, l lease.Lease, levels []int, rev int64) (marks []mark, own stored, err error) {
	slot := l.Slot()
	ops := []clientv3.Op{clientv3.OpGet(keys.slotsFrom(slot.Start), clientv3.WithRange(keys.slotsFrom(slot.End)), clientv3.WithRev(rev))}
	for _, level := range levels {
		if start := slot.Start >> level << level; level > l.BitSeq && start != slot.Start {
			ops = append(ops, clientv3.OpGet(keys.slot(start, level), clientv3.WithRev(rev)))
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
			if m.start == slot.Start && m.bitSeq == l.BitSeq {
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

// List implements provider.Lister. It reads page by page, all as of one moment.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	terms := p.services.Of(service)
	var all []provider.Record
	var rev int64
	err := p.eachSlot(ctx, p.pool(terms.Pool).keys, &rev, func(kv *mvccpb.KeyValue) (bool, error) {
		r, err := decode[slotRecord](kv.Key, kv.Value)
		all = append(all, r.record(terms))
		return true, err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, provider.CompareRecords)
	return all, nil
}

// Locate implements provider.Locator. It knows the last grants of each slot;
// doc.go says how many.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	terms := p.services.Of(service)
	if low < 0 || low > terms.Timeline.MaxLow() {
		return nil, nil
	}
	keys := p.pool(terms.Pool).keys
	levels, _, err := p.poolLevels(ctx, keys)
	if err != nil {
		return nil, err
	}
	var found []provider.Record
	for _, level := range levels {
		prefix := keys.history(low>>level<<level, level)
		var resp *clientv3.GetResponse
		err := p.conn.Call(ctx, func(ctx context.Context) (err error) {
			resp, err = p.conn.KV.Get(ctx, prefix, clientv3.WithRange(after(prefix)), clientv3.WithLimit(math.MaxInt16))
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, kv := range resp.Kvs {
			r, err := decode[slotRecord](kv.Key, kv.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.cfg.Place(), err)
			}
			ended := r.Expired
			if r.Released {
				ended = min(ended, r.End)
			}
			if r.Created <= atMS && atMS < ended {
				found = append(found, r.record(terms))
			}
		}
	}
	slices.SortStableFunc(found, func(a, b provider.Record) int { return int(b.Lease.Created - a.Lease.Created) })
	return found, nil
}
