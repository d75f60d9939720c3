package backend

import (
	"context"
	"errors"
	"io"

	"github.com/kazahana/kazahana/internal/lazy"
	"github.com/kazahana/kazahana/internal/record"
)

// opened is records, and what they are in.
type opened struct {
	record.Store
	fences  fencer      // nil: it does not say whether it is held back
	closers []io.Closer // in the order of closing
}

func (o *opened) close() error {
	var errs []error
	for _, c := range o.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// lazyRecords is records that are opened at their first use: a daemon starts with its store in
// any state.
type lazyRecords struct{ *lazy.Value[*opened] }

var _ record.Store = lazyRecords{}

// Change implements record.Store.
func (o lazyRecords) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	records, err := o.Get(ctx)
	if err != nil {
		return 0, err
	}
	return records.Change(ctx, ask, rule)
}

// Read implements record.Store.
func (o lazyRecords) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	records, err := o.Get(ctx)
	if err != nil {
		return record.View{}, err
	}
	return records.Read(ctx, ask)
}

// List implements record.Store.
func (o lazyRecords) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	records, err := o.Get(ctx)
	if err != nil {
		return nil, err
	}
	return records.List(ctx, prefix, after, limit)
}

// Watch implements record.Store.
func (o lazyRecords) Watch(ctx context.Context, prefix string) (<-chan struct{}, error) {
	records, err := o.Get(ctx)
	if err != nil {
		return nil, err
	}
	return records.Watch(ctx, prefix)
}

// Init implements record.Store.
func (o lazyRecords) Init(ctx context.Context) error {
	records, err := o.Get(ctx)
	if err != nil {
		return err
	}
	return records.Init(ctx)
}
