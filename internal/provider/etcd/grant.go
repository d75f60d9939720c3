package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
)

const (
	// maxAttempts is how often an acquire looks for free machine IDs anew, and
	// busyRetry when to come back after so many lost races.
	maxAttempts = 50
	busyRetry   = time.Second
	// fixedCompares and fixedOps are what a grant's transaction has beside those
	// of its slots.
	fixedCompares = 4
	fixedOps      = 4
	// maxLeases bounds one request, and so its record.
	maxLeases = 4096
	// maxTxnBytes keeps transactions below etcd's 1.5 MiB, and recordBytes is
	// what two records of a grant take beside their meta.
	maxTxnBytes = 1 << 20
	recordBytes = 1200
)

// The steps that Provider.at is told of.
const (
	stepExtending = "extending" // everything read, nothing written
	stepReleasing = "releasing" // the same
	stepWeighing  = "weighing"  // a scan looks at all that it has read so far
	stepChosen    = "chosen"    // nothing written
	stepGranted   = "granted"   // by the store, the caller does not know yet
)

// acquisition is one Acquire.
type acquisition struct {
	p     *Provider
	pool  *knownPool
	terms provider.Terms
	ring  pool.Ring
	req   provider.AcquireRequest
	now   int64
	key   string // of the request's record
	need  int    // leases

	attempts int
	repeated bool // the request was answered before

	// What was granted so far, by how many transactions.
	leases  []lease.Lease
	request requestRecord
	// requestRev is the mod revision of the request's record, 0 while it must
	// not exist.
	requestRev int64
}

// errAgain: what a transaction rested on has changed; look again.
var errAgain = errors.New("the pool has changed meanwhile")

func (a *acquisition) run(ctx context.Context) ([]lease.Lease, error) {
	for a.attempts = 1; a.attempts <= maxAttempts; a.attempts++ {
		leases, err := a.attempt(ctx)
		if !errors.Is(err, errAgain) && !errors.Is(err, rpctypes.ErrCompacted) {
			return leases, err
		}
	}
	return nil, &provider.BusyError{RetryAfter: busyRetry, Reason: "too many others ask at the same time"}
}

func (a *acquisition) attempt(ctx context.Context) ([]lease.Lease, error) {
	st, err := a.read(ctx)
	if err != nil && a.attempts == 1 {
		return nil, provider.NotSent(err) // a look at the pool grants nothing
	}
	if err != nil {
		return nil, err
	}
	if done, err := a.setUp(ctx, st); err != nil {
		return nil, err
	} else if !done {
		return nil, errAgain
	}
	if st.requestRev != 0 {
		a.repeated = true
		return a.replay(ctx, st)
	}
	if err := judge(a.now, st.votes); err != nil {
		// A vote that cannot be left changes nothing about the answer.
		_ = a.voteOnly(ctx)
		return nil, err
	}
	st.stale = a.forgettable(ctx, st.old)
	found, err := a.find(ctx, st, a.need)
	if err != nil {
		return nil, err
	}
	return a.grant(ctx, st, found)
}

// grant tries the candidates until it has what is needed, or none is left. Who
// loses a race goes on with any of them, at random: all were free a moment ago, and
// each transaction says for itself whether its own still are. Hosts that start at
// once lose the race for the first one, and rarely another one after it.
func (a *acquisition) grant(ctx context.Context, st *state, found *candidates) ([]lease.Lease, error) {
	if err := a.p.at(stepChosen); err != nil {
		return nil, err
	}
	rest, lostOnce := found.ids, false
	for len(rest) > 0 && len(a.leases) < a.need {
		size := min(a.batchSize(st), a.need-len(a.leases), len(rest))
		if lostOnce {
			for i := range size {
				j := i + rand.IntN(len(rest)-i)
				rest[i], rest[j] = rest[j], rest[i]
			}
		}
		batch := rest[:size]
		lost, err := a.commit(ctx, st, found, batch)
		switch {
		case errors.Is(err, errAgain) && len(a.leases) > 0:
			// Somebody else closed the request, or something rare changed:
			// some are better than none, and the record says which.
			return a.closed(ctx)
		case err != nil:
			return nil, err
		case len(lost) > 0:
			a.p.contended()
			lostOnce = true
			rest = without(rest, lost)
		default:
			rest = rest[size:]
		}
	}
	if len(a.leases) == 0 {
		return nil, errAgain
	}
	if err := a.p.at(stepGranted); err != nil {
		return nil, err
	}
	return a.leases, nil
}

// closed is the answer to a request that is no longer this caller's to extend.
func (a *acquisition) closed(ctx context.Context) ([]lease.Lease, error) {
	st, err := a.read(ctx)
	if err != nil {
		return nil, err
	}
	if st.requestRev == 0 {
		return nil, fmt.Errorf("%s: the pool's keys were removed while leases were granted", a.p.cfg.Place())
	}
	return a.replay(ctx, st)
}

// without removes the lost ones, and keeps the order.
func without(ids []int64, lost map[int64]bool) []int64 {
	var rest []int64
	for _, id := range ids {
		if !lost[id] {
			rest = append(rest, id)
		}
	}
	return rest
}

// batchSize is how many slots one transaction can grant.
func (a *acquisition) batchSize(st *state) int {
	coarser := 0
	for _, level := range st.levels {
		if level > a.terms.BitSeq {
			coarser++
		}
	}
	meta := 0
	for k, v := range a.req.Meta {
		meta += len(k) + len(v)
	}
	byCompares := (etcdconn.MaxTxnOps - fixedCompares) / (1 + coarser)
	byOps := (etcdconn.MaxTxnOps - fixedOps - requestSample) / 2
	// JSON writes a byte that it must escape as six.
	byBytes := maxTxnBytes / (2*6*meta + recordBytes)
	return max(1, min(byCompares, byOps, byBytes))
}

// commit grants the batch in one transaction, all of it or nothing. It returns
// those that somebody else got since they were found.
func (a *acquisition) commit(ctx context.Context, st *state, found *candidates, batch []int64) (lost map[int64]bool, err error) {
	a.reserve(batch, true)
	defer a.reserve(batch, false)
	kept := historyKept(a.terms.Range().Count())
	records := make([]slotRecord, len(batch))
	leases := make([]lease.Lease, len(batch))
	request := requestRecord{Created: a.now, Grants: a.request.Grants[:len(a.request.Grants):len(a.request.Grants)]}
	for i, id := range batch {
		l := a.terms.Grant(id, a.now, provider.NewSecret())
		leases[i] = l
		record := pool.NewRecord(l, a.req)
		record.Number = found.bases[id].number
		records[i] = storedOf(record, kept)
		request.Grants = append(request.Grants, grantRecord{ID: id, BitSeq: l.BitSeq, Secret: l.Secret})
		request.End = record.End
	}
	request.Open = len(a.leases)+len(batch) < a.need

	ifs := a.compares(st)
	for _, id := range batch {
		ifs = append(ifs, a.pool.keys.unchanged(a.ring.Key(id), st.levels, found.bases[id])...)
	}
	puts := a.puts(st, records, request)
	resp, err := a.exchange(ctx, ifs, puts, a.questions(st, found, batch))
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		return losers(resp, batch)
	}
	a.leases = append(a.leases, leases...)
	a.request, a.requestRev = request, resp.Header.Revision
	if st.view != nil {
		marks := make([]mark, len(records))
		for i, r := range records {
			marks[i] = mark{Mark: pool.Mark{Key: r.key(), Created: r.Created, End: r.End}, number: r.Number, rev: resp.Header.Revision}
		}
		st.view.granted(marks)
	}
	return nil, nil
}

// exchange sends a grant's transaction, with this host's vote.
func (a *acquisition) exchange(ctx context.Context, ifs []clientv3.Cmp, puts, elses []clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = a.withVoice(ctx, func(id clientv3.LeaseID) error {
		thens := append(puts[:len(puts):len(puts)], a.vote(id))
		// Done twice, it is not granted twice: the request's record is in the way.
		return a.p.conn.Call(ctx, func(ctx context.Context) (err error) {
			resp, err = a.p.conn.KV.Txn(ctx).If(ifs...).Then(thens...).Else(elses...).Commit()
			return err
		})
	})
	return resp, err
}

// compares is what every grant rests on, beside its slots: the pool is the one
// whose timeline was read; no bit_seq has come up that was not looked at; and
// nobody else has answered the request.
func (a *acquisition) compares(st *state) []clientv3.Cmp {
	k := a.pool.keys
	levels := k.base + "level/"
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(k.pool()), "=", st.poolRev),
		clientv3.Compare(clientv3.ModRevision(levels).WithRange(after(levels)), "<", st.rev+1),
		clientv3.Compare(clientv3.CreateRevision(k.level(a.terms.BitSeq)), ">", 0),
		clientv3.Compare(clientv3.ModRevision(a.key), "=", a.requestRev),
	}
}

// unchanged compares that no record of a slot that overlaps this one was
// written since: one range for its own and all finer ones, one key for each
// coarser bit_seq in use.
func (k space) unchanged(key pool.Key, levels []int, b basis) []clientv3.Cmp {
	slot := key.Slot()
	ifs := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(k.slotsFrom(slot.Start)).WithRange(k.slotsFrom(slot.End)), "<", b.inside+1),
	}
	for i, coarser := range key.Coarser(levels) {
		ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(k.slot(coarser)), "<", b.coarser[i]+1))
	}
	return ifs
}

// written asks for the records that make unchanged fail, in the same order.
func (k space) written(key pool.Key, levels []int, b basis) []clientv3.Op {
	newer := func(rev int64) []clientv3.OpOption {
		return []clientv3.OpOption{clientv3.WithKeysOnly(), clientv3.WithMinModRev(rev + 1), clientv3.WithLimit(1)}
	}
	slot := key.Slot()
	ops := []clientv3.Op{
		clientv3.OpGet(k.slotsFrom(slot.Start), append(newer(b.inside), clientv3.WithRange(k.slotsFrom(slot.End)))...),
	}
	for i, coarser := range key.Coarser(levels) {
		ops = append(ops, clientv3.OpGet(k.slot(coarser), newer(b.coarser[i])...))
	}
	return ops
}

// puts is everything that a grant writes, beside the vote, and the old requests
// that it forgets.
func (a *acquisition) puts(st *state, records []slotRecord, request requestRecord) []clientv3.Op {
	k := a.pool.keys
	var ops []clientv3.Op
	for _, key := range st.stale {
		ops = append(ops, clientv3.OpDelete(key))
	}
	for _, r := range records {
		ops = append(ops, k.putSlot(r)...)
	}
	last := strconv.FormatInt(records[len(records)-1].ID, 10)
	return append(ops,
		clientv3.OpPut(a.key, encode(request)),
		clientv3.OpPut(k.cursor(a.terms.BitSeq, a.terms.Range()), last),
		clientv3.OpPut(k.last(), ""),
	)
}

// putSlot writes a slot's record and the same grant's in the history.
func (k space) putSlot(r slotRecord) []clientv3.Op {
	record := encode(r)
	r.Secret = ""
	return []clientv3.Op{
		clientv3.OpPut(k.slot(r.key()), record),
		clientv3.OpPut(k.historyOf(r.key(), r.Number, r.Kept), encode(r)),
	}
}

// questions asks, where the transaction is refused, what has changed: whether
// it was the request, and each slot.
func (a *acquisition) questions(st *state, found *candidates, batch []int64) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpGet(a.key, clientv3.WithKeysOnly(), clientv3.WithMinModRev(a.requestRev+1))}
	for _, id := range batch {
		ops = append(ops, a.pool.keys.written(a.ring.Key(id), st.levels, found.bases[id])...)
	}
	return ops
}

// losers reads the answers to questions. errAgain means that it was not about
// slots.
func losers(resp *clientv3.TxnResponse, batch []int64) (map[int64]bool, error) {
	answers := resp.Responses[1:]
	lost := map[int64]bool{}
	each := len(answers) / len(batch)
	for i, id := range batch {
		for _, r := range answers[i*each : (i+1)*each] {
			if len(r.GetResponseRange().Kvs) > 0 {
				lost[id] = true
			}
		}
	}
	if len(lost) == 0 || len(resp.Responses[0].GetResponseRange().Kvs) > 0 {
		return nil, errAgain
	}
	return lost, nil
}

// reserve notes which slots this process is trying to get.
func (a *acquisition) reserve(batch []int64, trying bool) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	starts := a.pool.inFlight[a.terms.BitSeq]
	if starts == nil {
		starts = map[int64]bool{}
		a.pool.inFlight[a.terms.BitSeq] = starts
	}
	for _, id := range batch {
		if trying {
			starts[id<<a.terms.BitSeq] = true
		} else {
			delete(starts, id<<a.terms.BitSeq)
		}
	}
}
