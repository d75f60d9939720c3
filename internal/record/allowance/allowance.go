// Package allowance limits how many records one payer may make in a record store, and how many
// bytes they take. A payer is a user of the daemon's socket, or a tenant of the lease server:
// the name that Pay puts into the context of a Change. A Change without a payer is not limited.
//
// The ledger is this process's own and in memory. A record counts for the payer that wrote it
// last through this process: from the change that makes it, up to its term and the time for
// which it is kept. A record without either counts until the process ends: nothing deletes it.
// Records with a term that were made before the process began count from their next write.
package allowance

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

const (
	// recordSize is what a record takes besides its key, twice, and its value: with its
	// indexes, and with pages that are not full.
	recordSize = 256
	// smallValue is the size up to which a value may always grow. A lock with all of its
	// receipts has less, so that a renewal or a release is never refused.
	smallValue = 8 << 10
	// smallGrowth is by how much a larger one may grow: a new owner of what a process left
	// behind writes its name.
	smallGrowth = 1 << 10
	// looks is how many records of the ledger a change looks at to drop those that have
	// ended: more than it can make.
	looks = 2 * record.MaxWrites
	// payerShare: one payer gets so large a part of a store that says how much it may take.
	// All payers together get so many times the limits of one in another.
	payerShare = 4
	// fairShare: a payer with less than so large a part of its limits may fill them that far,
	// though all together have no room: four others must not keep everybody out.
	fairShare = 16
	// fullLook is how long a refusal relies on the last look at the whole ledger.
	fullLook = time.Second
)

// Limits are those of one payer; 0 stands for none.
type Limits struct {
	Keys  int64 // quota_keys
	Bytes int64 // quota_disk
}

type payerKey struct{}

// Pay returns a context in which what is made counts for the payer, a name for people.
func Pay(ctx context.Context, payer string) context.Context {
	return context.WithValue(ctx, payerKey{}, payer)
}

// New returns the store with the limits. elapsed is time that passes since any beginning.
func New(store record.Store, limits Limits, elapsed func() time.Duration) *Store {
	return &Store{Store: store, limits: limits, elapsed: elapsed, seed: maphash.MakeSeed(), payers: map[string]*payer{}, dated: map[uint64]dated{}}
}

// Store is a record.Store whose changes are paid for.
type Store struct {
	record.Store
	elapsed func() time.Duration
	seed    maphash.Seed

	mu     sync.Mutex // guards all below
	limits Limits
	all    payer // the sum of all
	payers map[string]*payer
	dated  map[uint64]dated // records that end, by the hash of their keys
	most   int              // how many the map has room for
	looked time.Duration    // when a refusal looked at all of them
}

// SetLimits replaces the limits, for what is made from now on.
func (s *Store) SetLimits(limits Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = limits
}

// payer is what counts for one.
type payer struct{ keys, bytes int64 }

// dated is a record that ends. There may be many: it is small.
type dated struct {
	payer *payer
	bytes int32
	due   int32 // seconds
}

// Change implements record.Store.
func (s *Store) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	name, ok := ctx.Value(payerKey{}).(string)
	if !ok {
		return s.Store.Change(ctx, ask, rule)
	}
	b := &bill{store: s, name: name}
	// The rule may run several times, and after a Change that failed.
	atMS, err := s.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		writes, err := rule(v)
		if err != nil {
			b.cancel()
			return writes, err
		}
		err = b.charge(v, writes)
		return writes, err
	})
	if errors.Is(err, record.ErrInvalid) || errors.Is(err, record.ErrBusy) || errors.Is(err, record.ErrTerm) {
		b.cancel()
	} else if err != nil && !errors.Is(err, record.ErrUnconfirmed) {
		b.doubt()
	}
	return atMS, err
}

// doubtful is how many seconds a record counts that may have been made, unless it is written
// again.
const doubtful = 3600

// doubt is for a change of unknown outcome: a record that would stay counts as one that ends,
// and so once, however often it is tried.
func (b *bill) doubt() {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	items := slices.Clone(b.items)
	b.undo()
	for _, i := range items {
		switch {
		case i.now != dated{}:
			s.apply(i)
		case i.keys > 0 && s.dated[i.hash] == dated{}:
			s.replace(i.hash, dated{i.payer, int32(i.bytes), int32(s.elapsed()/time.Second) + doubtful})
		}
	}
}

// bill is what one change has charged. Its fields are guarded by the store's mu.
type bill struct {
	store *Store
	name  string
	items []item
}

// item is the charge for one record: by more of a payer, and the entry of one that ends.
type item struct {
	payer       *payer
	keys, bytes int64
	hash        uint64
	before, now dated // of the zero value: no entry
}

// charge has the payer pay for the writes, instead of those of the run before.
func (b *bill) charge(v record.View, writes []record.Write) error {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	b.undo()
	seconds := s.elapsed() / time.Second
	s.drop(int32(seconds), looks)
	p := s.payers[b.name]
	if p == nil {
		p = &payer{}
		s.payers[b.name] = p
	}
	for _, w := range writes {
		found, exists := v.Records[w.Key]
		if err := b.admit(p, v, w, len(found.Value), exists); err != nil {
			b.undo()
			return err
		}
		i := item{payer: p, hash: maphash.String(s.seed, w.Key)}
		i.before = s.dated[i.hash]
		size := sizeOf(w)
		switch {
		case w.Value == nil:
		case w.TermMS > 0 || w.KeepMS > 0:
			i.now = dated{p, int32(size), int32(int64(seconds) + (w.TermMS+w.KeepMS)/1000 + 1)}
		case exists && i.before == dated{}:
			i.bytes = max(int64(len(w.Value)-len(found.Value)), -p.bytes)
		default:
			i.keys, i.bytes = 1, size
		}
		s.apply(i)
		b.items = append(b.items, i)
	}
	return nil
}

// everybody is the name of all payers together.
const everybody = "all together"

// sizeOf is what a record takes, or somewhat more.
func sizeOf(w record.Write) int64 { return int64(recordSize + 2*len(w.Key) + len(w.Value)) }

// admit refuses a new record that exceeds a limit, and a large one that grows.
func (b *bill) admit(p *payer, v record.View, w record.Write, length int, exists bool) error {
	if w.Value == nil || exists && len(w.Value) <= max(length+smallGrowth, smallValue) {
		return nil
	}
	more, keys := sizeOf(w), int64(1)
	if exists {
		more, keys = int64(len(w.Value)-length), 0
	}
	s := b.store
	most := s.limits.Bytes
	if v.MaxSize > 0 {
		most = min(cmp.Or(most, v.MaxSize), v.MaxSize/payerShare)
	}
	full := func() *record.FullError {
		switch {
		case v.MaxSize > 0 && v.Size >= v.MaxSize:
			return &record.FullError{Quota: "the disk", Payer: "the store", Limit: v.MaxSize, Unit: "bytes"}
		case v.MaxSize == 0 && s.limits.Keys > 0 && keys > 0 && s.all.keys+keys > s.limits.Keys*payerShare && p.keys+keys > s.limits.Keys/fairShare:
			return &record.FullError{Quota: "quota_keys", Payer: everybody, Limit: s.limits.Keys * payerShare, Unit: "keys"}
		case v.MaxSize == 0 && s.limits.Bytes > 0 && s.all.bytes+more > s.limits.Bytes*payerShare && p.bytes+more > s.limits.Bytes/fairShare:
			return &record.FullError{Quota: "quota_disk", Payer: everybody, Limit: s.limits.Bytes * payerShare, Unit: "bytes"}
		case s.limits.Keys > 0 && keys > 0 && p.keys+keys > s.limits.Keys:
			return &record.FullError{Quota: "quota_keys", Payer: b.name, Limit: s.limits.Keys, Unit: "keys"}
		case most > 0 && p.bytes+more > most:
			return &record.FullError{Quota: "quota_disk", Payer: b.name, Limit: most, Unit: "bytes"}
		}
		return nil
	}
	if full() == nil {
		return nil
	}
	if now := s.elapsed(); now-s.looked >= fullLook || s.looked == 0 {
		s.drop(int32(now/time.Second), len(s.dated))
		s.looked = now
	}
	if err := full(); err != nil {
		return err
	}
	return nil
}

// apply carries out a charge.
func (s *Store) apply(i item) {
	s.count(i.payer, i.keys, i.bytes)
	s.replace(i.hash, i.now)
}

// count changes what counts for a payer.
func (s *Store) count(p *payer, keys, bytes int64) {
	p.keys += keys
	p.bytes += bytes
	s.all.keys += keys
	s.all.bytes += bytes
}

// replace exchanges the entry of a record that ends, and who pays for it.
func (s *Store) replace(hash uint64, now dated) {
	if before, ok := s.dated[hash]; ok {
		s.count(before.payer, -1, -int64(before.bytes))
		delete(s.dated, hash)
	}
	if now.payer != nil {
		s.count(now.payer, 1, int64(now.bytes))
		s.dated[hash] = now
	}
}

// cancel takes back what was charged: nothing was changed.
func (b *bill) cancel() {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	b.undo()
}

// undo is cancel with the store's mu. What others have charged for a record since stays.
func (b *bill) undo() {
	for _, i := range b.items {
		b.store.count(i.payer, -i.keys, -i.bytes)
		if b.store.dated[i.hash] == i.now {
			b.store.replace(i.hash, i.before)
		}
	}
	b.items = b.items[:0]
}

// drop looks at so many records that end, and drops those that have. A map that has become
// almost empty is exchanged: a look at it walks through all of its room.
func (s *Store) drop(seconds int32, looks int) {
	for hash, d := range s.dated {
		if looks--; looks < 0 {
			break
		}
		if d.due <= seconds {
			s.replace(hash, dated{})
		}
	}
	if s.most = max(s.most, len(s.dated)); len(s.dated) < s.most/8 {
		s.most = len(s.dated)
		dated := make(map[uint64]dated, s.most) // a clone is as large
		maps.Copy(dated, s.dated)
		s.dated = dated
	}
}
