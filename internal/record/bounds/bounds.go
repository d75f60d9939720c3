// Package bounds keeps a record store from growing without end: it refuses new records once
// there are so many, or once they take so much.
//
// The limits are of all records together. A store that counts its records and their bytes
// (record.View) is asked; for others, this process counts the records made through it. One
// payer gets three quarters of a limit. A payer is a user of the daemon's socket, or a tenant
// of the lease server: the name that Pay puts into the context of a Change. A Change without a
// payer is not limited, and not counted.
//
// Only new records are refused, and large ones that grow by much: a renewal or a release
// never is. A change counts after its commit, so that changes that are under way at the same
// time may exceed a limit together, by their new records.
//
// The ledger of each payer's records is in memory. A record counts for the payer that
// wrote it last through this process, until its term and the time for which it is kept have
// passed. A record without either counts for the payer that made it, until the process ends:
// no rule deletes it.
package bounds

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

const (
	// smallValue is the size up to which a value may always grow. A lock with all of its
	// receipts has less, so that a renewal or a release is never refused.
	smallValue = 8 << 10
	// smallGrowth is by how much a larger one may grow: a new owner of a record that a process
	// left behind writes its name.
	smallGrowth = 1 << 10
	// looks is how many records of the ledger a change looks at to drop ended ones: more than it
	// can make.
	looks = 2 * record.MaxWrites
	// fullLook is how long a refusal relies on the last look at the whole ledger.
	fullLook = time.Second
	// unknownTerm is how long a new record counts if it is not known whether it was made:
	// once, however often that is tried.
	unknownTerm = time.Hour
)

// Limits are those of all records together; 0 stands for none.
type Limits struct {
	Keys  int64 // max_keys
	Bytes int64 // max_disk
}

type payerKey struct{}

// Pay returns a context in which new records count for the payer, a name for people.
func Pay(ctx context.Context, payer string) context.Context {
	return context.WithValue(ctx, payerKey{}, payer)
}

// Payer is the name that Pay put into the context, "" for none.
func Payer(ctx context.Context) string {
	payer, _ := ctx.Value(payerKey{}).(string)
	return payer
}

// Store is a record.Store with limits.
type Store struct {
	record.Store
	limits  Limits
	elapsed func() time.Duration
	seed    maphash.Seed

	mu     sync.Mutex // guards all below
	all    sum
	payers map[string]*payer
	ending map[uint64]ending // records that end, by the hash of their keys
	most   int               // how many the map has room for
	looked time.Duration     // when a refusal looked at all of them
}

// sum is how many records count, and their bytes.
type sum struct{ keys, bytes int64 }

// payer is what counts for one.
type payer struct {
	sum
	lasting int64 // of the bytes, those of records without an end
}

// ending is a record that ends. There may be many: it is small.
type ending struct {
	payer *payer
	bytes int32
	due   int32 // seconds
}

// New returns the store with the limits. elapsed is time that passes since any beginning.
func New(store record.Store, limits Limits, elapsed func() time.Duration) *Store {
	return &Store{Store: store, limits: limits, elapsed: elapsed, seed: maphash.MakeSeed(), payers: map[string]*payer{}, ending: map[uint64]ending{}}
}

// run has the view and the writes of a rule's last run.
type run struct {
	seen   map[string]record.Record
	writes []record.Write
}

// Change implements record.Store.
func (s *Store) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	name, paid := ctx.Value(payerKey{}).(string)
	if !paid {
		return s.Store.Change(ctx, ask, rule)
	}
	// A store may run the rule, and commit, after its Change has returned without an answer.
	var last atomic.Pointer[run]
	var returned atomic.Bool
	count := func(known bool) {
		if r := last.Swap(nil); r != nil {
			s.count(name, r, known)
		}
	}
	atMS, err := s.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		last.Store(nil)
		writes, err := rule(v)
		if err == nil {
			err = s.admit(name, v, writes)
		}
		if err == nil {
			last.Store(&run{v.Records, writes})
		}
		if returned.Load() {
			count(false)
		}
		return writes, err
	})
	returned.Store(true)
	switch {
	case errors.Is(err, record.ErrInvalid), errors.Is(err, record.ErrBusy), errors.Is(err, record.ErrTerm), errors.Is(err, record.ErrCrowded):
	default:
		count(err == nil || errors.Is(err, record.ErrUnconfirmed))
	}
	return atMS, err
}

// admit refuses writes that make records, or large ones larger, beyond a limit.
func (s *Store) admit(name string, v record.View, writes []record.Write) error {
	var more sum
	for _, w := range writes {
		found, exists := v.Records[w.Key]
		switch length := len(found.Value); {
		case w.Value == nil:
		case !exists:
			more.keys++
			more.bytes += w.Size()
		case len(w.Value) > max(length+smallGrowth, smallValue):
			more.bytes += int64(len(w.Value) - length)
		}
	}
	if more == (sum{}) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.exceeded(name, v, more)
	if now := s.elapsed(); err != nil && (now-s.looked >= fullLook || s.looked == 0) {
		s.looked = now
		s.drop(len(s.ending))
		err = s.exceeded(name, v, more)
	}
	if err != nil {
		return err
	}
	return nil
}

// exceeded is the limit that so much more would exceed, or nil. mu is held.
func (s *Store) exceeded(name string, v record.View, more sum) *record.FullError {
	all, own := s.all, sum{}
	if p := s.payers[name]; p != nil {
		own = p.sum
	}
	if v.Keys > 0 {
		all.keys = v.Keys
	}
	if v.Size > 0 {
		all.bytes = v.Size
	}
	switch keys, bytes := s.limits.Keys, s.limits.Bytes; {
	case v.Full:
		return &record.FullError{}
	case keys > 0 && more.keys > 0 && all.keys+more.keys > keys:
		return &record.FullError{Setting: record.SettingKeys, Limit: keys}
	case bytes > 0 && all.bytes+more.bytes > bytes:
		return &record.FullError{Setting: record.SettingDisk, Limit: bytes}
	case keys > 0 && more.keys > 0 && own.keys+more.keys > share(keys):
		return &record.FullError{Setting: record.SettingKeys, Limit: share(keys), Payer: name}
	case bytes > 0 && own.bytes+more.bytes > share(bytes):
		return &record.FullError{Setting: record.SettingDisk, Limit: share(bytes), Payer: name}
	}
	return nil
}

// share is one payer's part of a limit.
func share(limit int64) int64 { return limit - limit/4 }

// count notes the writes that a change has made, or may have.
func (s *Store) count(name string, r *run, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(looks)
	p := s.payers[name]
	if p == nil {
		p = &payer{}
		s.payers[name] = p
	}
	for _, w := range r.writes {
		found, exists := r.seen[w.Key]
		hash := maphash.String(s.seed, w.Key)
		_, ends := s.ending[hash]
		s.forget(hash)
		term := time.Duration(w.TermMS+w.KeepMS) * time.Millisecond
		if !known && !exists && term == 0 {
			term = unknownTerm
		}
		switch {
		case w.Value == nil:
		case term > 0:
			s.ending[hash] = ending{p, int32(w.Size()), int32((s.elapsed()+term)/time.Second) + 1}
			s.add(p, 1, w.Size())
		case exists && !ends:
			// Another payer may have made it, and this one may make it smaller.
			more := max(int64(len(w.Value)-len(found.Value)), -p.lasting)
			p.lasting += more
			s.add(p, 0, more)
		default:
			p.lasting += w.Size()
			s.add(p, 1, w.Size())
		}
	}
}

// add changes what counts for a payer, and for all. mu is held.
func (s *Store) add(p *payer, keys, bytes int64) {
	p.keys += keys
	p.bytes += bytes
	s.all.keys += keys
	s.all.bytes += bytes
}

// forget takes a record that ends off the ledger. mu is held.
func (s *Store) forget(hash uint64) {
	if e, ok := s.ending[hash]; ok {
		s.add(e.payer, -1, -int64(e.bytes))
		delete(s.ending, hash)
	}
}

// drop looks at so many records, and forgets the ended ones. A map that has become almost empty
// is exchanged: a look at it walks through all of its room. mu is held.
func (s *Store) drop(looks int) {
	seconds := int32(s.elapsed() / time.Second)
	for hash, e := range s.ending {
		if looks--; looks < 0 {
			break
		}
		if e.due <= seconds {
			s.forget(hash)
		}
	}
	if s.most = max(s.most, len(s.ending)); len(s.ending) < s.most/8 {
		s.most = len(s.ending)
		smaller := make(map[uint64]ending, s.most) // a clone is as large
		maps.Copy(smaller, s.ending)
		s.ending = smaller
		maps.DeleteFunc(s.payers, func(_ string, p *payer) bool { return *p == payer{} })
	}
}
