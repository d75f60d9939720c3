package stores

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/sequence"
)

// systems are what a store keeps.
type systems struct {
	locks      lock.Store
	sequences  sequence.Store
	placements func(context.Context) (storage.Storage, error)
	closers    []io.Closer // in the order of closing
}

// always is records that are open as soon as the store is.
func always(s storage.Storage) func(context.Context) (storage.Storage, error) {
	return func(context.Context) (storage.Storage, error) { return s, nil }
}

// whenUsed opens records at their first use, and again at the next when that
// fails. What open returns holds nothing: two may be opened at once.
func whenUsed(open func(context.Context) (storage.Storage, error)) func(context.Context) (storage.Storage, error) {
	var opened atomic.Pointer[storage.Storage]
	return func(ctx context.Context) (storage.Storage, error) {
		if s := opened.Load(); s != nil {
			return *s, nil
		}
		s, err := open(ctx)
		if err == nil {
			opened.Store(&s)
		}
		return s, err
	}
}

func (s *systems) close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// lazy opens the systems at the first use, and tries again at the next when that
// fails: a daemon starts whatever state its store is in.
type lazy struct {
	open func(context.Context) (*systems, error)

	turn   chan struct{} // holds one element while somebody opens
	mu     sync.Mutex
	opened *systems // guarded by mu, as is closed
	closed bool
}

func newLazy(open func(context.Context) (*systems, error)) *lazy {
	return &lazy{open: open, turn: make(chan struct{}, 1)}
}

var errClosed = errors.New("the store is closed")

func (l *lazy) get(ctx context.Context) (*systems, error) {
	if s, err := l.ready(); s != nil || err != nil {
		return s, err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s, err := l.ready(); s != nil || err != nil {
		return s, err
	}
	s, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.Join(errClosed, s.close())
	}
	l.opened = s
	return s, nil
}

func (l *lazy) ready() (*systems, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	return l.opened, nil
}

func (l *lazy) close() error {
	l.mu.Lock()
	opened := l.opened
	l.opened, l.closed = nil, true
	l.mu.Unlock()
	if opened == nil {
		return nil
	}
	return opened.close()
}

// lockStore is the locks of a store that is opened at its first use. It is a
// Notifier as far as what it opens is.
type lockStore struct{ *lazy }

func (s lockStore) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if err := r.Validate(); err != nil {
		return lock.Lease{}, err
	}
	opened, err := s.get(ctx)
	if err != nil {
		return lock.Lease{}, err
	}
	return opened.locks.Do(ctx, r)
}

func (s lockStore) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	opened, err := s.get(ctx)
	if err != nil {
		return lock.Lease{}, err
	}
	return opened.locks.Get(ctx, tenant, key)
}

func (s lockStore) List(ctx context.Context, tenant, after string, limit int) ([]lock.Lease, error) {
	opened, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	return opened.locks.List(ctx, tenant, after, limit)
}

// Notify implements lock.Notifier.
func (s lockStore) Notify(ctx context.Context, tenant, key string) (<-chan struct{}, error) {
	opened, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	notifier, ok := opened.locks.(lock.Notifier)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return notifier.Notify(ctx, tenant, key)
}

// Close implements lock.Store. The systems share what is open: Store.Close ends
// them.
func (lockStore) Close() error { return nil }

// sequenceStore is the sequences of a store that is opened at its first use.
type sequenceStore struct{ *lazy }

func (s sequenceStore) Next(ctx context.Context, r sequence.Request) (sequence.Range, error) {
	if err := r.Validate(); err != nil {
		return sequence.Range{}, err
	}
	opened, err := s.get(ctx)
	if err != nil {
		return sequence.Range{}, err
	}
	return opened.sequences.Next(ctx, r)
}

// Declare implements sequence.Declarer, as far as what it opens does.
func (s sequenceStore) Declare(ctx context.Context, d sequence.Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	opened, err := s.get(ctx)
	if err != nil {
		return err
	}
	declarer, ok := opened.sequences.(sequence.Declarer)
	if !ok {
		return errors.ErrUnsupported
	}
	return declarer.Declare(ctx, d)
}

// Close implements sequence.Store; see lockStore.Close.
func (sequenceStore) Close() error { return nil }

// placementStore is the activation records of a store that is opened at its first
// use.
type placementStore struct{ *lazy }

func (s placementStore) records(ctx context.Context, key placement.Key) (storage.Storage, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	opened, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	return opened.placements(ctx)
}

func (s placementStore) Load(ctx context.Context, tenant string, key placement.Key) (placement.Record, error) {
	records, err := s.records(ctx, key)
	if err != nil {
		return placement.Record{}, err
	}
	return records.Load(ctx, tenant, key)
}

func (s placementStore) Store(ctx context.Context, tenant string, key placement.Key, r placement.Record) error {
	if err := r.Validate(); err != nil {
		return err
	}
	records, err := s.records(ctx, key)
	if err != nil {
		return err
	}
	return records.Store(ctx, tenant, key, r)
}

func (s placementStore) Remove(ctx context.Context, tenant string, key placement.Key, r placement.Record, keep bool) error {
	if err := r.Validate(); err != nil {
		return err
	}
	records, err := s.records(ctx, key)
	if err != nil {
		return err
	}
	return records.Remove(ctx, tenant, key, r, keep)
}

// Close implements storage.Storage; see lockStore.Close.
func (placementStore) Close() error { return nil }
