package etcd

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
)

// The counters of a pool are shared out among countKeys keys. A host always adds
// to the same one, so that hosts rarely write the same key at once, and the number
// of keys does not grow with the hosts that come and go. A reader adds them up.
const (
	countKeys = 256
	// countTries is how often an addition is tried when other hosts add to the same
	// key, and countTimeout how long: what cannot be added then is added with the
	// next one, and lost where there is none.
	countTries   = 10
	countTimeout = time.Second
)

// tally is what this process has to add to a pool's counters.
type tally struct {
	turn chan struct{} // held while the key is written

	mu      sync.Mutex
	pending map[string]int64
	joined  bool // this process was counted as a client

	// With the turn: the key's value and mod revision, as far as known.
	known    map[string]int64
	knownRev int64
}

func newTally() *tally { return &tally{turn: make(chan struct{}, 1), pending: map[string]int64{}} }

// add notes counts, to be written.
func (t *tally) add(counts map[string]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum(t.pending, counts)
}

// take is what is pending, which is then the caller's to write or put back.
func (t *tally) take() map[string]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.pending
	t.pending = map[string]int64{}
	return taken
}

func sum(into, counts map[string]int64) {
	for name, n := range counts {
		into[name] += n
	}
}

// first reports whether the acquire is its client's first.
func (t *tally) first(client provider.Client) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if client != provider.OwnClient {
		return client == provider.NewClient
	}
	first := !t.joined
	t.joined = true
	return first
}

// countAcquire counts an acquire by its outcome. Those without an answer of the
// store are not counted, nor is a client twice whose request is repeated.
func (p *Provider) countAcquire(ctx context.Context, pl *knownPool, req provider.AcquireRequest, repeated bool, err error) {
	names := pool.Counted(err)
	if len(names) > 0 && !repeated && pl.tally.first(req.Client) {
		names = append(names, provider.CountClients)
	}
	p.count(ctx, pl, names)
}

// count adds one to each counter, and what is pending of others who wait for their turn.
// An error is none of the caller's, whose request was answered.
func (p *Provider) count(ctx context.Context, pl *knownPool, names []string) {
	if len(names) == 0 {
		return
	}
	for _, name := range names {
		pl.tally.add(map[string]int64{name: 1})
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	t := pl.tally
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return
	}
	counts := t.take()
	if len(counts) == 0 {
		return // another call has written it
	}
	key := pl.keys.count(p.cfg.Host)
	for range countTries {
		total := maps.Clone(t.known)
		if total == nil {
			total = map[string]int64{}
		}
		sum(total, counts)
		resp, err := p.conn.CommitOnce(ctx, etcdconn.Txn{
			If:   []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", t.knownRev)},
			Then: []clientv3.Op{clientv3.OpPut(key, encode(total))}, Else: []clientv3.Op{clientv3.OpGet(key)},
		})
		if err != nil {
			t.knownRev, t.known = 0, nil // it may have been written: rather too few than too many
			return
		}
		if resp.Succeeded {
			t.known, t.knownRev = total, resp.Header.Revision
			return
		}
		t.known, t.knownRev = nil, 0
		for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
			t.knownRev = kv.ModRevision
			t.known, _ = decode[map[string]int64](kv.Key, kv.Value) // a damaged one begins anew
		}
	}
	t.add(counts)
}

// Counters implements provider.Provider. All names are there.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	all := provider.NoCounts()
	from := p.pool(p.services.Of(service)).keys.counts()
	resp, err := p.conn.Get(ctx, from, clientv3.WithRange(after(from)), clientv3.WithLimit(countKeys))
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		counts, err := decode[map[string]int64](kv.Key, kv.Value)
		if err != nil {
			return nil, p.explain(err)
		}
		sum(all, counts)
	}
	return all, nil
}

func (s space) counts() string { return s.base + "count/" }

// count is the key that the host adds to.
func (s space) count(host string) string {
	return fmt.Sprintf("%s%02x", s.counts(), sha256.Sum256([]byte(host))[0])
}
