// Package etcd keeps sequences in etcd, for all hosts that use it. A call is
// answered when a majority of the members has it on disk.
//
// A key is one record, which a transaction replaces if its revision is still the
// one that was read; callers of one process take turns at a key, so that only
// those of different processes race. What another call made of the key comes
// back with the failed transaction.
//
// etcd has no clock. The record of a key with a TTL hangs on an etcd lease, so
// that the cluster itself removes it when nobody used it for that long. A lease
// is kept alive as the key is used, and lasts longer than the TTL by a fifth, so
// that this need not be done at every call: a key is forgotten a TTL after its
// last use, or up to a fifth of it later.
package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/etcdconn"
	"github.com/kazahana/kazahana/internal/sequence"
)

const (
	// stripes is how many keys of a process can be in use at the same time.
	stripes = 256
	// slack is the part of a TTL that its lease lasts longer.
	slack = 5
	// firstWait and maxWait are between the tries of a call that loses races.
	firstWait = 2 * time.Millisecond
	maxWait   = 100 * time.Millisecond
)

// errOutrun leaves open what became of a call without a request ID.
var errOutrun = errors.New("the answer of a transaction was lost, and the sequence was changed since: nobody can tell whether it was carried out")

// Store is sequences in etcd, whose client it does not own.
type Store struct {
	conn   *etcdconn.Client
	prefix string
	seed   maphash.Seed
	// turns has a value for each stripe of keys, which whoever uses one takes out
	// and puts back. It is what this process knows of the key used last.
	turns [stripes]chan known
}

// known is a key's record as last seen: a hint, since transactions compare its
// revision.
type known struct {
	path  string // of the key; "": nothing is known
	state sequence.State
	rev   int64            // mod revision; 0: there is no record
	lease clientv3.LeaseID // that the record hangs on; 0: none
	// writer is the nonce of the call that wrote the record.
	writer string
	// aliveAt is when the lease was last kept alive by this process, from before
	// that was asked for.
	aliveAt time.Time
}

// record is a State as it is stored.
type record struct {
	Options  string `json:"options"`
	Last     int64  `json:"last"`
	Receipts string `json:"done,omitempty"`
	Writer   string `json:"by,omitempty"`
}

// call is one that changes a key.
type call struct {
	path  string // of the key
	nonce string // tells what this call wrote from what others did
	named bool   // it has a request ID, so that its receipt tells what became of it
}

var (
	_ sequence.Store    = (*Store)(nil)
	_ sequence.Declarer = (*Store)(nil)
)

// New uses the client, under keys that no pool of leases can have. Whoever
// opened the client closes it.
func New(conn *etcdconn.Client) *Store {
	s := &Store{conn: conn, prefix: conn.Config().Prefix + "@seq/", seed: maphash.MakeSeed()}
	for i := range s.turns {
		s.turns[i] = make(chan known, 1)
		s.turns[i] <- known{}
	}
	return s
}

// Close implements sequence.Store. The client stays open.
func (s *Store) Close() error { return nil }

// Next implements sequence.Store.
func (s *Store) Next(ctx context.Context, r sequence.Request) (sequence.Range, error) {
	if err := r.Validate(); err != nil {
		return sequence.Range{}, err
	}
	var got sequence.Range
	err := s.change(ctx, r.Tenant, r.Key, r.RequestID != "", func(before sequence.State) (after sequence.State, err error) {
		// The cluster removes what has expired: here no time passes.
		after, got, err = sequence.Next(before, r, 0)
		return after, err
	})
	if err != nil {
		return sequence.Range{}, err
	}
	return got, nil
}

// Declare implements sequence.Declarer.
func (s *Store) Declare(ctx context.Context, d sequence.Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	return s.change(ctx, d.Tenant, d.Key, false, func(sequence.State) (sequence.State, error) {
		return sequence.Declared(d, 0), nil
	})
}

// change replaces a key's state by what next makes of it.
func (s *Store) change(ctx context.Context, tenant, key string, named bool, next func(sequence.State) (sequence.State, error)) error {
	path := s.prefix + tenant + "/" + key
	c := call{path: path, nonce: sequence.NewRequestID(), named: named}
	turn := s.turns[maphash.String(s.seed, path)%stripes]
	var k known
	select {
	case k = <-turn:
	case <-ctx.Done():
		return fmt.Errorf("%s: waiting for other calls: %w", s.conn.Config().Place(), ctx.Err())
	}
	// Where anything is in doubt, the next call reads.
	defer func() { turn <- k }()
	sure := k.path == path
	wait := firstWait
	for {
		if !sure {
			var err error
			if k, err = s.read(ctx, path); err != nil {
				return err
			}
		}
		after, err := next(k.state)
		if err != nil && !sure {
			return err
		}
		if err != nil { // by what was known, which may be old
			sure = false
			continue
		}
		if k, sure, err = s.replace(ctx, c, k, after); errors.Is(err, errOutrun) {
			return fmt.Errorf("%s: sequence %q: %w", s.conn.Config().Place(), key, err)
		} else if err != nil || sure {
			return err
		}
		if k.path != "" {
			// Others race for the key; what they made of it is known now.
			sure = true
			wait, err = pause(ctx, wait)
			if err != nil {
				k = known{}
				return fmt.Errorf("%s: other hosts change sequence %q all the time: %w", s.conn.Config().Place(), key, err)
			}
		}
	}
}

// pause waits for about so long, and returns how long the next pause is.
func pause(ctx context.Context, wait time.Duration) (time.Duration, error) {
	timer := time.NewTimer(wait/2 + rand.N(wait/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return min(2*wait, maxWait), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *Store) read(ctx context.Context, path string) (k known, err error) {
	var resp *clientv3.GetResponse
	err = s.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = s.conn.KV.Get(ctx, path)
		return err
	})
	if err != nil {
		return known{}, err
	}
	return s.understand(path, resp.Kvs)
}

// understand reads the record of a key, of which there is at most one.
func (s *Store) understand(path string, kvs []*mvccpb.KeyValue) (known, error) {
	k := known{path: path}
	for _, kv := range kvs {
		var rec record
		err := json.Unmarshal(kv.Value, &rec)
		if err == nil {
			k.state.Options, err = sequence.ParseOptions(rec.Options)
		}
		if err == nil {
			k.state.Receipts, err = sequence.ParseReceipts(rec.Receipts)
		}
		if err != nil {
			return known{}, fmt.Errorf("%s: the record %s is damaged: %w", s.conn.Config().Place(), path, err)
		}
		k.state.Last, k.rev, k.lease, k.writer = rec.Last, kv.ModRevision, clientv3.LeaseID(kv.Lease), rec.Writer
	}
	return k, nil
}

// replace writes the state if the record is still the one that is known. done
// is false where it is not, and then the record that there is comes back, or
// nothing where that must be read. Where answers were lost, what this call wrote
// itself is no one else's.
func (s *Store) replace(ctx context.Context, c call, k known, after sequence.State) (now known, done bool, err error) {
	lease, aliveAt, err := s.leaseFor(ctx, k, after.Options.TTL)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return known{}, false, nil // the key has expired in the meantime
	}
	if err != nil {
		return known{}, false, err
	}
	value, err := json.Marshal(record{Options: after.Options.Text(), Last: after.Last, Receipts: after.ReceiptsText(), Writer: c.nonce})
	if err != nil {
		return known{}, false, err
	}
	var resp *clientv3.TxnResponse
	tries := 0 // all but the last have unknown outcomes
	err = s.conn.Call(ctx, func(ctx context.Context) (err error) {
		tries++
		resp, err = s.conn.KV.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(c.path), "=", k.rev)).
			Then(clientv3.OpPut(c.path, string(value), clientv3.WithLease(lease))).
			Else(clientv3.OpGet(c.path)).Commit()
		return err
	})
	gone := errors.Is(err, rpctypes.ErrLeaseNotFound)
	if err != nil && !gone {
		return known{}, false, err
	}
	if !gone && resp.Succeeded {
		return known{path: c.path, state: after, rev: resp.Header.Revision, lease: lease, aliveAt: aliveAt}, true, nil
	}
	if !gone {
		if now, err = s.understand(c.path, resp.Responses[0].GetResponseRange().Kvs); err != nil {
			return known{}, false, err
		}
	}
	switch {
	case now.writer == c.nonce:
		now.aliveAt = aliveAt
		return now, true, nil
	case tries > 1 && !c.named:
		return known{}, false, errOutrun
	default:
		return now, false, nil
	}
}

// leaseFor returns a lease that lasts for the TTL from now on, and when it was
// last kept alive; none where there is no TTL.
func (s *Store) leaseFor(ctx context.Context, k known, ttl time.Duration) (id clientv3.LeaseID, aliveAt time.Time, err error) {
	if ttl == 0 {
		return 0, time.Time{}, nil
	}
	same := k.lease != 0 && k.state.Options.TTL == ttl // else a declaration has changed it
	if same && time.Since(k.aliveAt) < ttl/slack {
		return k.lease, k.aliveAt, nil
	}
	aliveAt = time.Now()
	seconds := int64((ttl+ttl/slack)/time.Second) + 1
	err = s.conn.Call(ctx, func(ctx context.Context) error {
		if same {
			id = k.lease
			_, err := s.conn.KV.KeepAliveOnce(ctx, k.lease)
			return err
		}
		resp, err := s.conn.KV.Grant(ctx, seconds)
		if err == nil {
			id = resp.ID
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("%w: %w", sequence.ErrTTL, err)
	}
	return id, aliveAt, err
}
