package storage

import (
	"context"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
)

// Observed returns a storage that reports the duration of each call, by its name: load,
// store or remove. called must return at once.
func Observed(s Storage, called func(op string, took time.Duration)) Storage {
	return &observed{s, called}
}

type observed struct {
	Storage
	called func(op string, took time.Duration)
}

// Load implements Storage.
func (s *observed) Load(ctx context.Context, tenant string, key placement.Key) (placement.Record, error) {
	defer s.from("load", time.Now())
	return s.Storage.Load(ctx, tenant, key)
}

// Store implements Storage.
func (s *observed) Store(ctx context.Context, tenant string, key placement.Key, r placement.Record) error {
	defer s.from("store", time.Now())
	return s.Storage.Store(ctx, tenant, key, r)
}

// Remove implements Storage.
func (s *observed) Remove(ctx context.Context, tenant string, key placement.Key, r placement.Record, keep bool) error {
	defer s.from("remove", time.Now())
	return s.Storage.Remove(ctx, tenant, key, r, keep)
}

func (s *observed) from(op string, began time.Time) { s.called(op, time.Since(began)) }
