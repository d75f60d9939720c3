package issuer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/sequence"
)

// KeyedStores hold a process's store of locks and sequences, and their hosts.
type KeyedStores struct {
	Store     *backend.Store
	Locks     *lock.Host
	Sequences sequence.Store // with the blocks of this host
	Direct    sequence.Store // without
	// Options are those of a key, by the configuration or else the default.
	Options func(key string) (o sequence.Options, configured bool)
	Timeout time.Duration // of one call

	log *zap.Logger
}

// KeyedStoresOptions say where locks and sequences are kept.
type KeyedStoresOptions struct {
	Named     string // a URL, or "none"; "" for the store that belongs to the provider
	Provider  string // its URL
	StateDir  string
	LiveDir   string
	Sequences []config.Sequence
	Limits    bounds.Limits
	Timeout   time.Duration
	Clock     *clock.Believed
	Watching  Watching
}

// OpenKeyedStores opens the store. It does not connect yet. nil means that there is no
// store. The error is a *SettingsError.
func OpenKeyedStores(o KeyedStoresOptions) (*KeyedStores, error) {
	options, err := sequenceOptions(o.Sequences)
	if err != nil {
		return nil, &SettingsError{err}
	}
	url, opts := o.Named, backend.StoreOptions{NowMS: o.Clock.NowMS, LiveDir: o.LiveDir, Limits: o.Limits}
	if o.Named == "" {
		url, opts.Ignore = backend.Beside(o.Provider, o.StateDir), provider.TermsParams()
	}
	if url == "" || url == "none" {
		return nil, nil
	}
	s, err := backend.OpenStore(url, opts)
	if err != nil {
		return nil, &SettingsError{fmt.Errorf("store: %w", err)}
	}
	o.Watching.stores(s)
	return &KeyedStores{
		Store: s, Locks: lock.NewHost(s.Locks, o.Clock, o.Timeout), Options: options, Timeout: o.Timeout, log: o.Watching.Log,
		Sequences: o.Watching.sequences(sequence.NewBlocks(s.Sequences, o.Clock.Elapsed)), Direct: o.Watching.sequences(s.Sequences),
	}, nil
}

// Close releases the locks that connections hold, and closes the store.
func (k *KeyedStores) Close(ctx context.Context) error {
	if k == nil {
		return nil
	}
	err := k.Locks.Close(ctx)
	if errors.Is(err, context.DeadlineExceeded) { // the store is away; the stop succeeds anyway
		k.log.Warn("locks could not be released in time; they end with their terms", zap.String("component", "serve"))
		err = nil
	}
	return errors.Join(err, k.Store.Close())
}

// sequenceOptions returns a function that finds a key's options: the first matching
// entry has the longest prefix.
func sequenceOptions(counts []config.Sequence) (func(key string) (o sequence.Options, configured bool), error) {
	all := make([]sequence.Options, len(counts))
	for i, c := range counts {
		o := sequence.DefaultOptions()
		if c.Step != 0 {
			o.Step = c.Step
		}
		if c.OnMax != "" {
			o.OnMax = sequence.OnMax(c.OnMax)
		}
		if c.Start != nil {
			o.Start, o.StartSet = *c.Start, true
		}
		o.Max, o.TTL, o.Block = c.MaxValue, c.TTL, c.Block
		if err := o.Validate(); err != nil {
			return nil, fmt.Errorf("sequences.%s: %s", c.Prefix, strings.TrimPrefix(err.Error(), sequence.ErrInvalid.Error()+": "))
		}
		all[i] = o
	}
	return func(key string) (sequence.Options, bool) {
		for i, c := range counts {
			if strings.HasPrefix(key, c.Prefix) {
				return all[i], true
			}
		}
		return sequence.DefaultOptions(), false
	}, nil
}
