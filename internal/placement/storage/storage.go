package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/record"
)

// Storage keeps one record for each key of a tenant. Implementations are safe for
// concurrent use. Package storagetest is the suite that holds one to this.
type Storage interface {
	// Load returns the key's record, with Version 0 where there is none.
	Load(ctx context.Context, tenant string, key placement.Key) (placement.Record, error)

	// Store replaces the key's record, and is done when that is as durable as it
	// ever will be. The same record may be stored again, also with new parts (PID,
	// Snapshot).
	//
	// Errors: placement.ErrStale, where the stored record is not older, and
	// placement.ErrInvalid, and placement.ErrNoRoom: nothing was changed. After any other it may have been,
	// or may yet be.
	Store(ctx context.Context, tenant string, key placement.Key, r placement.Record) error

	// Remove takes the owner out of the key's record, unless the stored one is another's
	// or newer, which is no error. Version and token stay, and r.Snapshot, or with
	// keep the stored one. After it a Store of r that is under way fails.
	Remove(ctx context.Context, tenant string, key placement.Key, r placement.Record, keep bool) error
}

// recordPrefix begins the keys of all records of this package.
const recordPrefix = "activation/"

// OnRecords keeps activation records in a record store, which its owner closes.
func OnRecords(records record.Store) Storage { return &storage{records} }

type storage struct{ records record.Store }

// format is the version of a value's layout that this program writes and knows.
// Version 1 does not write it.
const format = 1

// value is a record as it is stored.
type value struct {
	Format     int    `json:"format,omitempty"`
	Owner      string `json:"owner,omitempty"`
	Membership int64  `json:"membership,omitempty"`
	PID        string `json:"pid,omitempty"`
	Version    int64  `json:"version"`
	Token      int64  `json:"token"`
	Snapshot   []byte `json:"snapshot,omitempty"`
	ObservedMS int64  `json:"observed_ms,omitempty"`
}

func encode(r placement.Record) ([]byte, error) {
	return json.Marshal(value{Owner: r.Owner.Authority, Membership: r.Owner.Token, PID: r.PID, Version: r.Version, Token: r.Token, Snapshot: r.Snapshot, ObservedMS: r.ObservedMS})
}

func decode(name string, b []byte) (placement.Record, error) {
	if b == nil {
		return placement.Record{}, nil
	}
	var c value
	err := json.Unmarshal(b, &c)
	if c.Format > format {
		return placement.Record{}, fmt.Errorf("the activation record %s was written by a newer kazahanad (format %d, this one knows up to %d): "+
			"upgrade this one, or go back as docs/compatibility.md says", name, c.Format, format)
	}
	if err != nil || c.Version < 1 {
		return placement.Record{}, fmt.Errorf("the activation record %s is damaged: %w", name, errors.Join(err, fmt.Errorf("its version is %d", c.Version)))
	}
	return placement.Record{Owner: placement.Member{Authority: c.Owner, Token: c.Membership}, PID: c.PID, Version: c.Version, Token: c.Token, Snapshot: c.Snapshot, ObservedMS: c.ObservedMS}, nil
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
	v, err := s.records.Read(ctx, record.Ask{Keys: []string{recordPrefix + name}})
	if err != nil {
		return placement.Record{}, err
	}
	return decode(name, v.Records[recordPrefix+name].Value)
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

func (s *storage) change(ctx context.Context, tenant string, key placement.Key, next func(placement.Record) (placement.Record, error)) error {
	name, err := nameOf(tenant, key)
	if err != nil {
		return err
	}
	path := recordPrefix + name
	_, err = s.records.Change(ctx, record.Ask{Keys: []string{path}}, func(v record.View) ([]record.Write, error) {
		before := v.Records[path].Value
		stored, err := decode(name, before)
		if err != nil {
			return nil, err
		}
		r, err := next(stored)
		if err != nil {
			return nil, err
		}
		after, err := encode(r)
		if err != nil || bytes.Equal(after, before) {
			return nil, err
		}
		return []record.Write{{Key: path, Value: after, Unlisted: true}}, nil
	})
	if full, ok := errors.AsType[*record.FullError](err); ok {
		return fmt.Errorf("%w: %w", placement.ErrNoRoom, full)
	}
	return err
}
