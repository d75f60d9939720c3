package stores

import (
	"context"

	postgresconn "github.com/kazahana/kazahana/internal/conn/postgres"
	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
)

// fencer is a store that says whether it may have forgotten something.
type fencer interface {
	known() *Fence // without I/O; nil: it is not held back
	fence(ctx context.Context) (*Fence, error)
	look(ctx context.Context) error
}

// fencedFile is a store in a file.
type fencedFile struct{ *sqlitefile.File }

func (f fencedFile) known() *Fence {
	known := f.Known()
	if known.Life == "" || known.Trusted && !known.Holds(f.NowMS()) {
		return nil
	}
	return &Fence{UntilMS: known.UntilMS, Reason: known.Reason, Sequences: !known.Trusted}
}

func (f fencedFile) fence(ctx context.Context) (*Fence, error) {
	_, err := f.Fence(ctx)
	return f.known(), err
}

func (f fencedFile) look(ctx context.Context) error { return f.Look(ctx) }

// fencedServer is a store in PostgreSQL.
type fencedServer struct{ *postgresconn.Store }

func (s fencedServer) known() *Fence {
	m := s.Known()
	if m.Fence.Life == "" || m.Fence.Trusted && !m.Fence.Holds(m.NowMS) {
		return nil
	}
	return &Fence{UntilMS: m.Fence.UntilMS, Reason: m.Fence.Reason, Sequences: !m.Fence.Trusted}
}

func (s fencedServer) fence(ctx context.Context) (*Fence, error) {
	_, err := s.Fence(ctx)
	return s.known(), err
}

func (s fencedServer) look(ctx context.Context) error {
	_, err := s.Look(ctx, nil)
	return err
}
