package backend

import (
	"context"
	"errors"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/onuse"
	"github.com/kazahana/kazahana/internal/provider"
)

// onUse is a provider that is opened when it is first needed, and again as long as
// that fails. Once open, it stays: what a store forgot while it was away is the
// store's own matter.
type onUse struct {
	info   provider.Info
	opened *onuse.Value[provider.Provider]
}

var (
	_ provider.Verifier    = (*onUse)(nil)
	_ provider.Lister      = (*onUse)(nil)
	_ provider.Extender    = (*onUse)(nil)
	_ provider.Locator     = (*onUse)(nil)
	_ provider.Initializer = (*onUse)(nil)
	_ provider.Counter     = (*onUse)(nil)
	_ provider.Fencer      = (*onUse)(nil)
)

func newOnUse(info provider.Info, open func(context.Context) (provider.Provider, error)) *onUse {
	return &onUse{info, onuse.New("provider "+info.URL, open, provider.Provider.Close)}
}

// get returns the provider, and opens it where it is not yet. Its errors wrap
// provider.ErrNotSent: without a provider there was nothing to send a request with.
func (o *onUse) get(ctx context.Context) (provider.Provider, error) {
	p, err := o.opened.Get(ctx)
	return p, provider.NotSent(err)
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

// Verify implements provider.Verifier.
func (o *onUse) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	v, err := capable[provider.Verifier](ctx, o, "it cannot tell whose a lease is")
	if err != nil {
		return nil, err
	}
	return v.Verify(ctx, service, claims)
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
func (o *onUse) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	e, err := capable[provider.Extender](ctx, o, "it cannot extend a lease")
	if err != nil {
		return lease.Lease{}, err
	}
	return e.Extend(ctx, req)
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

// Fence implements provider.Fencer.
func (o *onUse) Fence(ctx context.Context) (*provider.FencedError, error) {
	f, err := capable[provider.Fencer](ctx, o, "it is not fenced by hand")
	if err != nil {
		return nil, err
	}
	return f.Fence(ctx)
}

// Fenced implements provider.Fencer. Nothing is known before the first use.
func (o *onUse) Fenced() *provider.FencedError {
	p, _ := o.opened.Ready()
	if f, ok := p.(provider.Fencer); ok {
		return f.Fenced()
	}
	return nil
}

// Look implements provider.Fencer.
func (o *onUse) Look(ctx context.Context) error {
	f, err := capable[provider.Fencer](ctx, o, "it is not fenced by hand")
	if err != nil {
		return err
	}
	return f.Look(ctx)
}

// Close implements provider.Provider. It is the last call.
func (o *onUse) Close() error { return o.opened.Close() }
