package backend

import (
	"context"

	"github.com/kazahana/kazahana/internal/lazy"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// lazyProvider is a provider that is opened when it is first needed, and again as long as
// that fails. Once open, it stays: what a store forgot while it was away is the
// store's own matter.
type lazyProvider struct {
	info   provider.Info
	opened *lazy.Value[provider.Provider]
}

var _ provider.Provider = (*lazyProvider)(nil)

func newLazy(info provider.Info, open func(context.Context) (provider.Provider, error)) *lazyProvider {
	return &lazyProvider{info, lazy.New("provider "+info.URL, open, provider.Provider.Close)}
}

// call calls the provider, which it opens where that has not been done. Its own
// errors wrap provider.ErrNotSent: without a provider there was nothing to send a
// request with.
func call[T any](ctx context.Context, o *lazyProvider, f func(provider.Provider) (T, error)) (T, error) {
	p, err := o.opened.Get(ctx)
	if err != nil {
		var none T
		return none, provider.NotSent(err)
	}
	return f(p)
}

// do is call for a method that returns an error only.
func (o *lazyProvider) do(ctx context.Context, f func(provider.Provider) error) error {
	_, err := call(ctx, o, func(p provider.Provider) (struct{}, error) { return struct{}{}, f(p) })
	return err
}

// Ready implements provider.Provider: it opens the provider, or says why that is not
// possible now.
func (o *lazyProvider) Ready(ctx context.Context) error {
	return o.do(ctx, func(p provider.Provider) error { return p.Ready(ctx) })
}

// Info implements provider.Provider.
func (o *lazyProvider) Info() provider.Info { return o.info }

// Acquire implements provider.Provider.
func (o *lazyProvider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	return call(ctx, o, func(p provider.Provider) ([]lease.Lease, error) { return p.Acquire(ctx, req) })
}

// Release implements provider.Provider.
func (o *lazyProvider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	return o.do(ctx, func(p provider.Provider) error { return p.Release(ctx, req) })
}

// Verify implements provider.Provider.
func (o *lazyProvider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	return call(ctx, o, func(p provider.Provider) ([]int, error) { return p.Verify(ctx, service, claims) })
}

// List implements provider.Provider.
func (o *lazyProvider) List(ctx context.Context, service string) ([]provider.Record, error) {
	return call(ctx, o, func(p provider.Provider) ([]provider.Record, error) { return p.List(ctx, service) })
}

// Extend implements provider.Provider.
func (o *lazyProvider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	return call(ctx, o, func(p provider.Provider) (lease.Lease, error) { return p.Extend(ctx, req) })
}

// Locate implements provider.Provider.
func (o *lazyProvider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	return call(ctx, o, func(p provider.Provider) ([]provider.Record, error) { return p.Locate(ctx, service, low, atMS) })
}

// Init implements provider.Provider.
func (o *lazyProvider) Init(ctx context.Context, service string) error {
	return o.do(ctx, func(p provider.Provider) error { return p.Init(ctx, service) })
}

// Counters implements provider.Provider.
func (o *lazyProvider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	return call(ctx, o, func(p provider.Provider) (map[string]int64, error) { return p.Counters(ctx, service) })
}

// Fence implements provider.Provider.
func (o *lazyProvider) Fence(ctx context.Context) (*provider.FencedError, error) {
	return call(ctx, o, func(p provider.Provider) (*provider.FencedError, error) { return p.Fence(ctx) })
}

// Fenced implements provider.Provider. Nothing is known before the first use.
func (o *lazyProvider) Fenced() *provider.FencedError {
	if p, ok := o.opened.Ready(); ok {
		return p.Fenced()
	}
	return nil
}

// Look implements provider.Provider.
func (o *lazyProvider) Look(ctx context.Context) error {
	return o.do(ctx, func(p provider.Provider) error { return p.Look(ctx) })
}

// Close implements provider.Provider. It is the last call.
func (o *lazyProvider) Close() error { return o.opened.Close() }
