package sqlite

import (
	"context"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/provider"
)

// fencedError is the refusal while the fence holds, nil when it does not.
func fencedError(fence sqlitefile.Fence, nowMS int64) *provider.FencedError {
	if !fence.Holds(nowMS) {
		return nil
	}
	return &provider.FencedError{UntilMS: fence.UntilMS, Reason: fence.Reason}
}

// Init implements provider.Provider, for all pools of the file.
func (p *Provider) Init(ctx context.Context, _ string) error { return p.file.Init(ctx) }

// Fence implements provider.Provider.
func (p *Provider) Fence(ctx context.Context) (*provider.FencedError, error) {
	fence, err := p.file.Fence(ctx)
	if err != nil {
		return nil, err
	}
	return &provider.FencedError{UntilMS: fence.UntilMS, Reason: fence.Reason}, nil
}

// Fenced implements provider.Provider.
func (p *Provider) Fenced() *provider.FencedError {
	return fencedError(p.file.Known(), p.file.NowMS())
}

// Look implements provider.Provider.
func (p *Provider) Look(ctx context.Context) error { return p.file.Look(ctx) }

// Backup writes a consistent copy of the file to another one, which must not exist.
func (p *Provider) Backup(ctx context.Context, to string) error { return p.file.Backup(ctx, to) }
