package etcd

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
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

func (p *Provider) acquisition(terms provider.Terms, req provider.AcquireRequest, now int64) *acquisition {
	pl := p.pool(terms)
	return &acquisition{
		p: p, pool: pl, terms: terms, ring: pool.RingOf(terms), req: req, now: now,
		key: pl.keys.request(req.Service, req.RequestID), need: min(terms.LeaseCount(req.ThroughputPerMS), maxLeases),
	}
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
		a.voteOnly(ctx)
		return nil, err
	}
	st.stale = a.forgettable(ctx, st.old)
	found, err := a.find(ctx, st)
	if err != nil {
		return nil, err
	}
	return a.grant(ctx, st, found)
}

// grant tries the candidates until it has what is needed, or none is left. After a lost
// race it goes on with any of the queue, at random: all were free a moment ago, and each
// transaction says for itself whether its own still are. Hosts that start at once lose the
// race for the first one, and rarely another one after it.
func (a *acquisition) grant(ctx context.Context, st *state, rest []candidate) (_ []lease.Lease, err error) {
	defer func() {
		a.free(rest)
		if err != nil {
			a.pool.dropQueues() // they lack what was not granted
		}
	}()
	if err := a.p.at(stepChosen); err != nil {
		return nil, err
	}
	for len(rest) > 0 {
		batch := rest[:min(a.batchSize(st), len(rest))]
		lost, err := a.commit(ctx, st, batch)
		switch {
		case errors.Is(err, errAgain) && len(a.leases) > 0:
			// Somebody else closed the request, or something rare changed:
			// some are better than none, and the record says which.
			return a.closed(ctx)
		case err != nil:
			return nil, err
		case len(lost) > 0:
			a.p.contended()
			if a.attempts == 1 && len(a.leases) == 0 && a.spare() < spread {
				return nil, errAgain // too few for all who may have lost the same race
			}
			a.free(slices.DeleteFunc(slices.Clone(rest), func(c candidate) bool { return !lost[c.id] }))
			rest = slices.DeleteFunc(rest, func(c candidate) bool { return lost[c.id] })
			for _, c := range a.take(st, len(lost), true) {
				// Another search of this process may have put it back.
				if !slices.ContainsFunc(rest, func(tried candidate) bool { return tried.id == c.id }) {
					rest = append(rest, c)
				}
			}
		default:
			a.free(batch)
			rest = rest[len(batch):]
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
		return nil, a.p.explain(errors.New("the pool's keys were removed while leases were granted"))
	}
	return a.replay(ctx, st)
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
func (a *acquisition) commit(ctx context.Context, st *state, batch []candidate) (lost map[int64]bool, err error) {
	kept := historyKept(a.terms.Range().Count())
	request := requestRecord{Created: a.now, Grants: a.request.Grants[:len(a.request.Grants):len(a.request.Grants)]}
	var leases []lease.Lease
	var puts []clientv3.Op
	for _, c := range batch {
		l := a.terms.Grant(c.id, a.now, provider.NewSecret())
		record := pool.NewRecord(l, a.req)
		record.Number = c.number
		leases = append(leases, l)
		puts = append(puts, a.pool.keys.putSlot(storedOf(record, kept))...)
		request.Grants = append(request.Grants, grantRecord{ID: c.id, BitSeq: l.BitSeq, Secret: l.Secret})
		request.End = record.End
	}
	request.Open = len(a.leases)+len(batch) < a.need
	vote, said, err := a.vote(ctx)
	if err != nil {
		return nil, err
	}
	txn := a.transaction(st, batch)
	txn.Then = append(append(puts, a.puts(st, request)...), vote...)
	var resp *clientv3.TxnResponse
	// Sent twice, it grants once: the request's record is in the way.
	done, err := a.pool.change(func() (bool, error) {
		resp, err = a.p.conn.Commit(ctx, txn)
		return err == nil && resp.Succeeded, err
	})
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		// The vote's: this host was suspended, or somebody revoked it.
		a.speak(voice{})
		return nil, errAgain
	case err != nil:
		return nil, err
	case !done:
		return losers(resp, batch)
	}
	a.speak(said)
	a.leases = append(a.leases, leases...)
	a.request, a.requestRev = request, resp.Header.Revision
	a.pool.keepQueue(a.ring)
	return nil, nil
}

// keepQueue drops the queues of other rings, in which slots may overlap those that were
// granted in this one.
func (pl *knownPool) keepQueue(ring pool.Ring) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for other := range pl.queues {
		if other != ring {
			delete(pl.queues, other)
		}
	}
}

// transaction is what a grant rests on, and what it asks where that has changed.
//
// The pool is the one whose timeline was read; no bit_seq has come up that was not looked
// at; nobody else has answered the request; and no record of a slot that overlaps one of
// the batch was written since: one range for its own and all finer ones, one key for each
// coarser bit_seq in use. The questions ask for the request, and then for what was written
// of each slot.
func (a *acquisition) transaction(st *state, batch []candidate) etcdconn.Txn {
	k := a.pool.keys
	t := etcdconn.Txn{
		If: []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(k.pool()), "=", st.poolRev),
			clientv3.Compare(clientv3.ModRevision(k.levels()).WithRange(after(k.levels())), "<", st.rev+1),
			clientv3.Compare(clientv3.CreateRevision(k.level(a.terms.BitSeq)), ">", 0),
			clientv3.Compare(clientv3.ModRevision(a.key), "=", a.requestRev),
		},
		Else: []clientv3.Op{clientv3.OpGet(a.key, clientv3.WithKeysOnly(), clientv3.WithMinModRev(a.requestRev+1))},
	}
	for _, c := range batch {
		for _, r := range k.overlapping(a.ring.Key(c.id), st.levels, c.basis) {
			t.If = append(t.If, r.unchanged())
			t.Else = append(t.Else, clientv3.OpGet(r.key, clientv3.WithRange(r.end), clientv3.WithKeysOnly(), clientv3.WithMinModRev(r.rev+1), clientv3.WithLimit(1)))
		}
	}
	return t
}

// keyRange is keys of which none was written after the revision.
type keyRange struct {
	key, end string
	rev      int64
}

func (r keyRange) unchanged() clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(r.key).WithRange(r.end), "<", r.rev+1)
}

// overlapping is the records of the slots that overlap this one.
func (s space) overlapping(key pool.Key, levels []int, b basis) []keyRange {
	slot := key.Slot()
	all := []keyRange{{s.slotsFrom(slot.Start), s.slotsFrom(slot.End), b.inside}}
	for i, coarser := range key.Coarser(levels) {
		all = append(all, keyRange{s.slot(coarser), s.slot(coarser) + "\x00", b.coarser[i]})
	}
	return all
}

// puts is everything that a grant writes beside its slots and the vote, and the old
// requests that it forgets.
func (a *acquisition) puts(st *state, request requestRecord) []clientv3.Op {
	k := a.pool.keys
	var ops []clientv3.Op
	for _, key := range st.stale {
		ops = append(ops, clientv3.OpDelete(key))
	}
	last := strconv.FormatInt(request.Grants[len(request.Grants)-1].ID, 10)
	return append(ops,
		clientv3.OpPut(a.key, encode(request)),
		clientv3.OpPut(k.cursor(a.terms.BitSeq, a.terms.Range()), last),
		clientv3.OpPut(k.last(), ""),
	)
}

// putSlot writes a slot's record and the same grant's in the history.
func (s space) putSlot(r slotRecord) []clientv3.Op {
	record := encode(r)
	r.Secret = ""
	return []clientv3.Op{
		clientv3.OpPut(s.slot(r.key()), record),
		clientv3.OpPut(s.historyOf(r.key(), r.Number, r.Kept), encode(r)),
	}
}

// losers reads the answers to a transaction's questions. errAgain means that it was not
// about slots.
func losers(resp *clientv3.TxnResponse, batch []candidate) (map[int64]bool, error) {
	answers := resp.Responses[1:]
	lost := map[int64]bool{}
	each := len(answers) / len(batch)
	for i, c := range batch {
		for _, r := range answers[i*each : (i+1)*each] {
			if len(r.GetResponseRange().Kvs) > 0 {
				lost[c.id] = true
			}
		}
	}
	if len(lost) == 0 || len(resp.Responses[0].GetResponseRange().Kvs) > 0 {
		return nil, errAgain
	}
	return lost, nil
}
