package main

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/sequence"
)

// keyedStoresOptions say where the settings keep locks and sequences.
func keyedStoresOptions(l *config.Leases, r *config.Records, live string, watch issuer.Watching) issuer.KeyedStoresOptions {
	return issuer.KeyedStoresOptions{
		Named: r.Store, Provider: l.Provider, StateDir: l.StateDir, LiveDir: live, Sequences: r.Sequences,
		Limits: bounds.Limits{Keys: int64(r.MaxKeys), Bytes: r.MaxDisk}, Timeout: l.ProviderTimeout, Watching: watch,
		// With serve's defaults: these processes make no IDs.
		Clock: clock.NewBelieved(wallSource, clock.Config{MaxForward: time.Second, Hold: time.Minute}),
	}
}

// keepingConfig configures the daemon's methods for locks and sequences.
func (d *daemonParts) keepingConfig() (*daemon.Locks, *daemon.Sequences) {
	k := d.issuer.KeyedStores
	if k == nil {
		return nil, nil
	}
	owner := d.issuer.State.Owner()
	d.serveLog().Info("locks and sequences", zap.String("store", k.Store.URL), zap.String("owner", owner))
	return &daemon.Locks{Host: k.Locks, Store: k.Store.Locks, Owner: owner, Timeout: k.Timeout},
		&daemon.Sequences{Store: k.Sequences, Timeout: k.Timeout, Options: func(key string) sequence.Options {
			o, _ := k.Options(key)
			return o
		}}
}

// checkStore checks the settings of locks and sequences, without a side effect.
func checkStore(s *config.Serve) error {
	k, err := issuer.OpenKeyedStores(keyedStoresOptions(&s.Leases, &s.Records, "", issuer.Watching{Log: zap.NewNop()}))
	if err != nil {
		return err
	}
	return k.Close(context.Background())
}
