package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// voteSample is how many other hosts' clocks an acquire looks at.
	voteSample = 32
	// requestSample is how many old requests it looks at to forget them.
	requestSample = 4
)

// state is what an acquire reads of its pool before anything else, in one
// exchange: a bounded number of keys, whatever the pool's size.
type state struct {
	rev int64 // of the store, when it was read

	poolRev  int64 // mod revision of POOL/pool; 0 when there is no pool yet
	timeline snowflake.Timeline
	levels   []int // every bit_seq that has or is about to have records

	request    requestRecord
	requestRev int64 // 0 when the request is new

	cursor  int64 // a random one where there is none
	changes int64 // how often slots were changed
	done    int64 // how many of these changes, at least, were this process's

	votes []clockRecord
	old   []oldRequest
	stale []string // keys of those of them that can be forgotten
}

func (st *state) hasLevel(bitSeq int) bool { return slices.Contains(st.levels, bitSeq) }

// around gives the keys below a prefix that ends with '/' from a random place
// on, in a circle: up to n from there to the end, and up to n from the
// beginning to there. The keys end with hashes, so that this is a fair sample.
func around(prefix string, n int64) (later, earlier clientv3.Op) {
	middle := fmt.Sprintf("%s%016x", prefix, rand.Uint64())
	return clientv3.OpGet(middle, clientv3.WithRange(after(prefix)), clientv3.WithLimit(n)),
		clientv3.OpGet(prefix, clientv3.WithRange(middle), clientv3.WithLimit(n))
}

// stateOps is the reads that a state is made of; parse knows their order.
func (a *acquisition) stateOps() []clientv3.Op {
	k := a.pool.keys
	laterVotes, earlierVotes := around(k.clocks(), voteSample)
	requests, _ := around(k.requests(), requestSample)
	return []clientv3.Op{
		clientv3.OpGet(k.pool()),
		clientv3.OpGet(k.levels(), clientv3.WithRange(after(k.levels())), clientv3.WithKeysOnly()),
		clientv3.OpGet(a.key),
		clientv3.OpGet(k.cursor(a.terms.BitSeq, a.terms.Range())),
		clientv3.OpGet(k.last(), clientv3.WithKeysOnly()),
		laterVotes, earlierVotes, requests,
	}
}

// read reads the state.
func (a *acquisition) read(ctx context.Context) (*state, error) {
	pl := a.pool
	pl.mu.Lock()
	st, seen := &state{done: pl.done}, pl.rev
	pl.mu.Unlock()
	resp, err := a.p.conn.Commit(ctx, etcdconn.Txn{Then: a.stateOps()})
	if err != nil {
		return nil, err
	}
	st.rev = resp.Header.Revision
	pl.mu.Lock()
	pl.rev = st.rev
	if st.rev < seen {
		// The store has gone back behind what was seen before: it was restored from a
		// backup. What the queues say is of another history.
		clear(pl.queues)
	}
	pl.mu.Unlock()
	answers := make([][]*mvccpb.KeyValue, len(resp.Responses))
	for i, r := range resp.Responses {
		answers[i] = r.GetResponseRange().Kvs
	}
	return st, a.p.explain(st.parse(a, answers))
}

func (st *state) parse(a *acquisition, answers [][]*mvccpb.KeyValue) (err error) {
	poolKVs, levels, request, cursor, last := answers[0], answers[1], answers[2], answers[3], answers[4]
	for _, kv := range poolKVs {
		r, err := decode[poolRecord](kv.Key, kv.Value)
		if err != nil {
			return err
		}
		st.poolRev, st.timeline = kv.ModRevision, r.timeline()
	}
	if st.levels, err = levelsOf(levels); err != nil {
		return err
	}
	for _, kv := range request {
		if st.request, err = decode[requestRecord](kv.Key, kv.Value); err != nil {
			return err
		}
		st.requestRev = kv.ModRevision
	}
	st.cursor = a.ring.NewCursor(a.p.random)
	for _, kv := range cursor {
		// A damaged cursor is no cursor: it decides nothing but the order.
		if id, err := strconv.ParseInt(string(kv.Value), 10, 64); err == nil && a.ring.IDs.Contains(id) {
			st.cursor = id
		}
	}
	for _, kv := range last {
		st.changes = kv.Version
	}
	st.parseVotes(a, append(answers[5], answers[6]...))
	st.parseOld(a, answers[7])
	return nil
}

// parseVotes reads other hosts' clocks; a damaged one is none.
func (st *state) parseVotes(a *acquisition, kvs []*mvccpb.KeyValue) {
	own := a.pool.keys.clock(a.p.cfg.Host)
	for _, kv := range kvs[:min(len(kvs), voteSample)] {
		if v, err := decode[clockRecord](kv.Key, kv.Value); err == nil && string(kv.Key) != own {
			st.votes = append(st.votes, v)
		}
	}
}

// setUp creates the pool, and notes the bit_seq, where that was not yet done.
// It reports whether it was, so that the state holds.
func (a *acquisition) setUp(ctx context.Context, st *state) (done bool, err error) {
	k := a.pool.keys
	if st.poolRev != 0 && st.timeline != a.terms.Timeline {
		return false, provider.TimelineError(a.terms.Pool, st.timeline, a.terms.Timeline)
	}
	if st.poolRev != 0 && st.hasLevel(a.terms.BitSeq) {
		return true, nil
	}
	// Another one may do the same at this moment; the state is read again.
	t := etcdconn.Txn{If: []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(k.pool()), "=", st.poolRev)}}
	if st.poolRev == 0 {
		t.Then = append(t.Then, clientv3.OpPut(k.pool(), encode(poolRecord{a.terms.Timeline.EpochMS, a.terms.Timeline.BitTS})))
	}
	if level := k.level(a.terms.BitSeq); !st.hasLevel(a.terms.BitSeq) {
		t.If = append(t.If, clientv3.Compare(clientv3.CreateRevision(level), "=", 0))
		t.Then = append(t.Then, clientv3.OpPut(level, ""))
	}
	_, err = a.p.conn.Commit(ctx, t)
	return false, err
}
