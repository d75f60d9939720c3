package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record/allowance"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/stores"
)

// keeping holds a process's store of locks and sequences, and their hosts.
type keeping struct {
	store     *stores.Store
	locks     *lock.Host
	sequences sequence.Store // with the blocks of this host
	direct    sequence.Store // without
	options   func(key string) (o sequence.Options, configured bool)
	timeout   time.Duration
	log       *zap.Logger
}

// openKeeping opens the named store, else the one that belongs to the provider. It
// does not connect yet. nil means that there is no store.
func openKeeping(named, providerURL, stateDir, live string, counts []config.Sequence, limits allowance.Limits, timeout time.Duration, believed *clock.Believed, watch watching) (*keeping, error) {
	options, err := sequenceOptions(counts)
	if err != nil {
		return nil, usageError{err}
	}
	url, opts := named, stores.Options{NowMS: believed.NowMS, LiveDir: live, Quota: limits}
	if named == "" {
		url, opts.Ignore = stores.Beside(providerURL, stateDir), provider.TermsParams()
	}
	if url == "" || url == "none" {
		return nil, nil
	}
	s, err := stores.Open(url, opts)
	if err != nil {
		return nil, usageError{fmt.Errorf("store: %w", err)}
	}
	watch.stores(s)
	return &keeping{
		store: s, locks: lock.NewHost(s.Locks, believed, timeout), options: options, timeout: timeout, log: watch.log,
		sequences: watch.sequences(sequence.NewBlocks(s.Sequences, believed.Elapsed)), direct: watch.sequences(s.Sequences),
	}, nil
}

// file returns the store, or nil.
func (k *keeping) file() *stores.Store {
	if k == nil {
		return nil
	}
	return k.store
}

// close releases the locks that connections hold, and closes the store.
func (k *keeping) close(ctx context.Context) error {
	if k == nil {
		return nil
	}
	err := k.locks.Close(ctx)
	if errors.Is(err, context.DeadlineExceeded) { // the store is away; the stop succeeds anyway
		k.log.Warn("locks could not be released in time; they end with their terms", zap.String("component", "serve"))
		err = nil
	}
	return errors.Join(err, k.store.Close())
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
		o.Start, o.StartSet, o.Max, o.TTL, o.Block = c.Start, c.StartSet, c.MaxValue, c.TTL, c.Block
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

// lockOwner identifies this host to the store: its name, and a digest that
// distinguishes hosts of the same name.
func lockOwner() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		name = "unknown"
	}
	name = strings.Map(func(r rune) rune {
		if r > 'z' || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", r) {
			return '-'
		}
		return r
	}, name)
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(strings.TrimSpace(string(machine))) == 0 {
		return name[:min(len(name), 64)]
	}
	// A digest, because machine-id(5) asks to keep the ID itself confidential.
	sum := sha256.Sum256(append([]byte("kazahana lock owner "), machine...))
	return name[:min(len(name), 64)] + "+" + hex.EncodeToString(sum[:4])
}

// openStore opens the store of locks and sequences.
func (d *daemonParts) openStore() (err error) {
	s := d.settings
	watch := watching{tracing: d.tracing, log: d.log, called: d.metrics.StoreCalled}
	d.keeping, err = openKeeping(s.Store, s.Provider, s.StateDir, liveDir(s), s.Sequences, allowance.Limits{Keys: int64(s.QuotaKeys), Bytes: s.QuotaDisk}, s.ProviderTimeout, d.clock, watch)
	return err
}

// keepingConfig configures the daemon's methods for locks and sequences.
func (d *daemonParts) keepingConfig() (*daemon.Locks, *daemon.Sequences) {
	k := d.keeping
	if k == nil {
		return nil, nil
	}
	d.serveLog().Info("locks and sequences", zap.String("store", k.store.URL))
	return &daemon.Locks{Host: k.locks, Store: k.store.Locks, Owner: lockOwner(), Timeout: k.timeout},
		&daemon.Sequences{Store: k.sequences, Timeout: k.timeout, Options: func(key string) sequence.Options {
			o, _ := k.options(key)
			return o
		}}
}

// checkStore checks the settings of locks and sequences, without a side effect.
func checkStore(s *config.Serve) error {
	k, err := openKeeping(s.Store, s.Provider, s.StateDir, "", s.Sequences, allowance.Limits{}, s.ProviderTimeout, steadyClock(), watching{log: zap.NewNop()})
	if err != nil {
		return err
	}
	return k.close(context.Background())
}

// steadyClock is a believed clock with serve's defaults, for a process that makes no
// IDs.
func steadyClock() *clock.Believed {
	return clock.NewBelieved(wallSource, clock.Config{MaxForward: time.Second, Hold: time.Minute})
}
