package stores

import (
	"context"
	"errors"
	"io"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/onuse"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/sequence"
)

// systems are what a store keeps.
type systems struct {
	locks      lock.Store
	sequences  sequence.Store
	placements *onuse.Value[storage.Storage]
	records    record.Store     // nil: there are none that can be fenced
	file       *sqlitefile.File // nil: it is no file
	closers    []io.Closer      // in the order of closing
}

// always is records that are open as soon as the store is.
func always(s storage.Storage) *onuse.Value[storage.Storage] { return onuse.Opened("", s, nil) }

func (s *systems) close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// lazy is systems that are opened at their first use: a daemon starts whatever
// state its store is in.
type lazy = onuse.Value[*systems]

// lockStore is the locks of a store that is opened at its first use. It is a
// Notifier as far as what it opens is.
type lockStore struct{ lazy *lazy }

func (s lockStore) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if err := r.Validate(); err != nil {
		return lock.Lease{}, err
	}
	opened, err := s.lazy.Get(ctx)
	if err != nil {
		return lock.Lease{}, err
	}
	return opened.locks.Do(ctx, r)
}

func (s lockStore) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	opened, err := s.lazy.Get(ctx)
	if err != nil {
		return lock.Lease{}, err
	}
	return opened.locks.Get(ctx, tenant, key)
}

func (s lockStore) List(ctx context.Context, tenant, after string, limit int) ([]lock.Lease, error) {
	opened, err := s.lazy.Get(ctx)
	if err != nil {
		return nil, err
	}
	return opened.locks.List(ctx, tenant, after, limit)
}

// Notify implements lock.Notifier.
func (s lockStore) Notify(ctx context.Context, tenant, key string) (<-chan struct{}, error) {
	opened, err := s.lazy.Get(ctx)
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
type sequenceStore struct{ lazy *lazy }

func (s sequenceStore) Next(ctx context.Context, r sequence.Request) (sequence.Range, error) {
	if err := r.Validate(); err != nil {
		return sequence.Range{}, err
	}
	opened, err := s.lazy.Get(ctx)
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
	opened, err := s.lazy.Get(ctx)
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
type placementStore struct{ lazy *lazy }

func (s placementStore) records(ctx context.Context, key placement.Key) (storage.Storage, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	opened, err := s.lazy.Get(ctx)
	if err != nil {
		return nil, err
	}
	return opened.placements.Get(ctx)
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
