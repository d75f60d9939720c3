package backend

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/lazy"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
)

// opened is records, and what they are in.
type opened struct {
	record.Store
	closers []io.Closer // in the order of closing
	// backup writes a consistent copy to another file, which must not exist; nil where the records
	// are in no file.
	backup func(ctx context.Context, to string) error
	// refuseOld fails where leases of the services' pools are beside the records, as an earlier
	// version keeps them; nil: there are none.
	refuseOld func(context.Context, provider.Services) error
}

// unless is the records where there is no error. Else it closes them.
func (o *opened) unless(err error) (*opened, error) {
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

func (o *opened) close() error {
	var errs []error
	for _, c := range o.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// lazyRecords is records that are opened at their first use: a daemon starts with its store in
// any state. It remembers whether they are fenced.
type lazyRecords struct {
	*lazy.Value[*opened]
	fenced atomic.Pointer[sight] // nil: they are not
}

// sight is a fence as a view has shown it.
type sight struct {
	record.Fence
	nowMS int64     // by the store
	at    time.Time // by this process
}

var _ record.Store = (*lazyRecords)(nil)

// note remembers the fence that a view shows.
func (o *lazyRecords) note(v record.View) {
	switch {
	case v.Fence.Doubt || v.NowMS < v.Fence.UntilMS:
		o.fenced.Store(&sight{v.Fence, v.NowMS, time.Now()})
	case o.fenced.Load() != nil:
		o.fenced.Store(nil)
	}
}

// known is the fence as it was seen last, nil where there is none. It does no I/O.
func (o *lazyRecords) known() *Fence {
	s := o.fenced.Load()
	if s == nil || !s.Doubt && s.nowMS+time.Since(s.at).Milliseconds() >= s.UntilMS {
		return nil
	}
	return &Fence{UntilMS: s.UntilMS, Reason: s.Reason, Sequences: s.Doubt}
}

// Change implements record.Store.
func (o *lazyRecords) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	records, err := o.Get(ctx)
	if err != nil {
		return 0, err
	}
	return records.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		o.note(v)
		return rule(v)
	})
}

// Read implements record.Store.
func (o *lazyRecords) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	records, err := o.Get(ctx)
	if err != nil {
		return record.View{}, err
	}
	v, err := records.Read(ctx, ask)
	if err == nil {
		o.note(v)
	}
	return v, err
}

// List implements record.Store.
func (o *lazyRecords) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	records, err := o.Get(ctx)
	if err != nil {
		return nil, err
	}
	return records.List(ctx, prefix, after, limit)
}

// Watch implements record.Store.
func (o *lazyRecords) Watch(ctx context.Context, prefix string) (<-chan struct{}, error) {
	records, err := o.Get(ctx)
	if err != nil {
		return nil, err
	}
	return records.Watch(ctx, prefix)
}

// Init implements record.Store.
func (o *lazyRecords) Init(ctx context.Context) error { return o.restate(ctx, record.Store.Init) }

// Fence implements record.Store.
func (o *lazyRecords) Fence(ctx context.Context) error { return o.restate(ctx, record.Store.Fence) }

// restate changes the fence, and looks at it.
func (o *lazyRecords) restate(ctx context.Context, change func(record.Store, context.Context) error) error {
	records, err := o.Get(ctx)
	if err == nil {
		err = change(records, ctx)
	}
	if err == nil {
		_, err = o.Read(ctx, record.Ask{})
	}
	return err
}
