package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
)

// Storage keeps one record for each key of a tenant. Implementations are safe for
// concurrent use. Package storagetest is the suite that holds one to this.
type Storage interface {
	// Load returns the key's record, with Version 0 where there is none.
	Load(ctx context.Context, tenant string, key placement.Key) (placement.Record, error)

	// Store replaces the key's record, and is done when that is as durable as it
	// ever will be. The same record may be stored again, also with what was not
	// known before (PID, Snapshot).
	//
	// Errors: placement.ErrStale, where the stored record is not older, and
	// placement.ErrInvalid: nothing was changed. After any other it may have been,
	// or may yet be.
	Store(ctx context.Context, tenant string, key placement.Key, r placement.Record) error

	// Remove has the key's record name nobody, unless the stored one is another's
	// or newer, which is no error. Version and token stay, and r.Snapshot, or with
	// keep the stored one. After it a Store of r that is under way fails.
	Remove(ctx context.Context, tenant string, key placement.Key, r placement.Record, keep bool) error

	// Close ends the use of what the storage holds open.
	Close() error
}

// Cells is what a backend implements. Names are tenant/kind/identity; values are
// a few hundred bytes, and with a snapshot up to MaxCell.
type Cells interface {
	// Read returns nil where there is no such cell.
	Read(ctx context.Context, name string) ([]byte, error)
	// Swap replaces a cell that is what was read (nil: that is not there), and
	// reports whether it did. After an error it may have, or may yet.
	Swap(ctx context.Context, name string, read, next []byte) (bool, error)
	Close() error
}

// MaxCell is the largest value of a cell, in bytes.
const MaxCell = 128 << 10

// New is records in cells.
func New(cells Cells) Storage { return &storage{cells} }

type storage struct{ cells Cells }

// format is the version of a cell's layout that this program writes and knows.
// Version 1 does not write it.
const format = 1

// cell is a record as it is stored.
type cell struct {
	Format     int    `json:"format,omitempty"`
	Owner      string `json:"owner,omitempty"`
	Membership int64  `json:"membership,omitempty"`
	PID        string `json:"pid,omitempty"`
	Version    int64  `json:"version"`
	Token      int64  `json:"token"`
	Snapshot   []byte `json:"snapshot,omitempty"`
}

func encode(r placement.Record) ([]byte, error) {
	return json.Marshal(cell{Owner: r.Owner.Authority, Membership: r.Owner.Token, PID: r.PID, Version: r.Version, Token: r.Token, Snapshot: r.Snapshot})
}

func decode(name string, b []byte) (placement.Record, error) {
	if b == nil {
		return placement.Record{}, nil
	}
	var c cell
	err := json.Unmarshal(b, &c)
	if c.Format > format {
		return placement.Record{}, fmt.Errorf("the activation record %s was written by a newer kazahanad (format %d, this one knows up to %d): "+
			"upgrade this one, or go back as docs/compatibility.md says", name, c.Format, format)
	}
	if err != nil || c.Version < 1 {
		return placement.Record{}, fmt.Errorf("the activation record %s is damaged: %w", name, errors.Join(err, fmt.Errorf("its version is %d", c.Version)))
	}
	return placement.Record{Owner: placement.Member{Authority: c.Owner, Token: c.Membership}, PID: c.PID, Version: c.Version, Token: c.Token, Snapshot: c.Snapshot}, nil
}

func nameOf(tenant string, key placement.Key) (string, error) {
	return tenant + "/" + key.String(), key.Validate()
}

// Load implements Storage.
func (s *storage) Load(ctx context.Context, tenant string, key placement.Key) (placement.Record, error) {
	name, err := nameOf(tenant, key)
	if err != nil {
		return placement.Record{}, err
	}
	b, err := s.cells.Read(ctx, name)
	if err != nil {
		return placement.Record{}, err
	}
	return decode(name, b)
}

// Store implements Storage.
func (s *storage) Store(ctx context.Context, tenant string, key placement.Key, r placement.Record) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return s.change(ctx, tenant, key, func(stored placement.Record) (placement.Record, error) { return placement.Put(stored, r) })
}

// Remove implements Storage.
func (s *storage) Remove(ctx context.Context, tenant string, key placement.Key, r placement.Record, keep bool) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return s.change(ctx, tenant, key, func(stored placement.Record) (placement.Record, error) { return placement.Drop(stored, r, keep), nil })
}

// Between tries that lose a race for a cell. Few ever want the same one.
const (
	firstPause = time.Millisecond
	maxPause   = 50 * time.Millisecond
)

func (s *storage) change(ctx context.Context, tenant string, key placement.Key, next func(placement.Record) (placement.Record, error)) error {
	name, err := nameOf(tenant, key)
	if err != nil {
		return err
	}
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		read, err := s.cells.Read(ctx, name)
		if err != nil {
			return err
		}
		stored, err := decode(name, read)
		if err != nil {
			return err
		}
		r, err := next(stored)
		if err != nil {
			return err
		}
		b, err := encode(r)
		if err != nil {
			return err
		}
		if bytes.Equal(b, read) {
			return nil
		}
		if done, err := s.cells.Swap(ctx, name, read, b); done || err != nil {
			return err
		}
		select {
		case <-time.After(rand.N(pause)):
		case <-ctx.Done():
			return fmt.Errorf("others change the activation record %s all the time: %w", name, ctx.Err())
		}
	}
}

// Close implements Storage.
func (s *storage) Close() error { return s.cells.Close() }

// NewMemory is records that end with the process, for tests.
func NewMemory() Storage { return New(&memory{cells: map[string][]byte{}}) }

type memory struct {
	mu    sync.Mutex
	cells map[string][]byte
}

func (m *memory) Read(ctx context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cells[name], ctx.Err()
}

func (m *memory) Swap(ctx context.Context, name string, read, next []byte) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if !bytes.Equal(m.cells[name], read) {
		return false, nil
	}
	m.cells[name] = next
	return true, nil
}

func (m *memory) Close() error { return nil }
