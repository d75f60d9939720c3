package backend

import (
	"context"
	"errors"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// onUse opens a provider when it is first needed, and again as long as that
// fails. Once open, it stays: what a store forgot while it was away is the
// store's own matter.
type onUse struct {
	info provider.Info
	open func(context.Context) (provider.Provider, error)
	// turn holds the provider, nil before it is open. Whoever takes it out has
	// the right to open it, and puts it back.
	turn chan provider.Provider
}

var (
	_ provider.Verifier    = (*onUse)(nil)
	_ provider.Lister      = (*onUse)(nil)
	_ provider.Extender    = (*onUse)(nil)
	_ provider.Locator     = (*onUse)(nil)
	_ provider.Initializer = (*onUse)(nil)
	_ provider.Counter     = (*onUse)(nil)
)

var errClosed = errors.New("the provider is closed")

func newOnUse(info provider.Info, open func(context.Context) (provider.Provider, error)) *onUse {
	o := &onUse{info: info, open: open, turn: make(chan provider.Provider, 1)}
	o.turn <- nil
	return o
}

// get returns the provider, and opens it where it is not yet.
func (o *onUse) get(ctx context.Context) (p provider.Provider, err error) {
	var ok bool
	select {
	case p, ok = <-o.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !ok {
		return nil, errClosed
	}
	defer func() { o.turn <- p }()
	if p == nil {
		p, err = o.open(ctx)
	}
	return p, err
}

// Ready opens the provider, or says why that is not possible now.
func (o *onUse) Ready(ctx context.Context) error {
	_, err := o.get(ctx)
	return err
}

// Info implements provider.Provider.
func (o *onUse) Info() provider.Info { return o.info }

// Acquire implements provider.Provider.
func (o *onUse) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	p, err := o.get(ctx)
	if err != nil {
		return nil, err
	}
	return p.Acquire(ctx, req)
}

// Release implements provider.Provider.
func (o *onUse) Release(ctx context.Context, req provider.ReleaseRequest) error {
	p, err := o.get(ctx)
	if err != nil {
		return err
	}
	return p.Release(ctx, req)
}

// Verify implements provider.Verifier. A provider that cannot tell finds
// nothing lost.
func (o *onUse) Verify(ctx context.Context, service string, leases []lease.Lease) ([]lease.Lease, error) {
	p, err := o.get(ctx)
	if err != nil {
		return nil, err
	}
	if v, ok := p.(provider.Verifier); ok {
		return v.Verify(ctx, service, leases)
	}
	return nil, nil
}

// List implements provider.Lister.
func (o *onUse) List(ctx context.Context, service string) ([]provider.Record, error) {
	l, err := capable[provider.Lister](ctx, o, "it keeps no records")
	if err != nil {
		return nil, err
	}
	return l.List(ctx, service)
}

// Extend implements provider.Extender.
func (o *onUse) Extend(ctx context.Context, service string, l lease.Lease) (lease.Lease, error) {
	e, err := capable[provider.Extender](ctx, o, "it cannot extend a lease")
	if err != nil {
		return lease.Lease{}, err
	}
	return e.Extend(ctx, service, l)
}

// Locate implements provider.Locator.
func (o *onUse) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	l, err := capable[provider.Locator](ctx, o, "it keeps no history")
	if err != nil {
		return nil, err
	}
	return l.Locate(ctx, service, low, atMS)
}

// Init implements provider.Initializer.
func (o *onUse) Init(ctx context.Context, service string) error {
	i, err := capable[provider.Initializer](ctx, o, "it needs no declaration")
	if err != nil {
		return err
	}
	return i.Init(ctx, service)
}

// Counters implements provider.Counter.
func (o *onUse) Counters(ctx context.Context, service string) (map[string]int64, error) {
	c, err := capable[provider.Counter](ctx, o, "it does not count")
	if err != nil {
		return nil, err
	}
	return c.Counters(ctx, service)
}

// capable returns the provider as T. The error for one that is none is a
// *lackError.
func capable[T any](ctx context.Context, o *onUse, lacking string) (T, error) {
	p, err := o.get(ctx)
	capability, ok := p.(T)
	if err == nil && !ok {
		err = &lackError{provider: o.info.Name, lacking: lacking}
	}
	return capability, err
}

// lackError: the provider cannot do what was asked. It is errors.ErrUnsupported.
type lackError struct{ provider, lacking string }

func (e *lackError) Error() string        { return "the provider " + e.provider + ": " + e.lacking }
func (e *lackError) Is(target error) bool { return target == errors.ErrUnsupported }

// Close implements provider.Provider. It is the last call.
func (o *onUse) Close() error {
	p, ok := <-o.turn
	if !ok {
		return nil
	}
	close(o.turn)
	if p == nil {
		return nil
	}
	return p.Close()
}
