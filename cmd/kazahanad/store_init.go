package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// storeFlags name the store of locks and sequences for commands that open it without a daemon.
type storeFlags struct {
	serveFlags
	Store string `name:"store" placeholder:"URL" help:"Where locks and sequences are kept (default as for serve; with --provider, what goes with it)."`
}

// storeKeys are the daemon's keys that name the store and say how sequences count.
var storeKeys = append([]string{"sequences"}, providerKeys...)

// settings are the settings that a daemon started here would have. more are further flags.
func (f *storeFlags) settings(s *system, more ...string) (*config.Serve, error) {
	settings, err := loadOnly(s, slices.Concat(f.args(), given("store", f.Store), more), storeKeys)
	if err == nil && f.Store == "" && f.Provider != "" {
		settings.Store = ""
	}
	return settings, err
}

// open returns the store, which nothing has used yet. It does not create one.
func (f *storeFlags) open(s *system, more ...string) (*issuer.KeyedStores, error) {
	settings, err := f.settings(s, more...)
	if err != nil {
		return nil, err
	}
	k, err := issuer.OpenKeyedStores(keyedStoresOptions(&settings.Leases, &settings.Records, "", issuer.Watching{Log: zap.NewNop()}))
	if err != nil {
		return nil, err
	}
	if k == nil {
		return nil, usageError{errors.New("there is no store of locks and sequences: name one with --store")}
	}
	if missing := missingFile(k.Store.URL); missing != "" {
		return nil, errors.Join(fmt.Errorf("%s: there is no such file; name another with --store, or start the daemon first", missing), k.Close(s.ctx))
	}
	return k, nil
}

// calling calls the store, for as long as a call may take.
func calling(s *system, k *issuer.KeyedStores, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, k.Timeout)
	defer cancel()
	return do(ctx)
}

type storeInitCmd struct {
	storeFlags
	Yes bool `name:"yes" help:"Do it, although the store was used before."`
}

// Run declares the store of locks and sequences brand-new.
func (c *storeInitCmd) Run(s *system) error {
	k, err := c.open(s)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close(s.ctx) }()
	st := k.Store
	if err := elsewhere("declare it new", "store", st.URL); err != nil {
		return err
	}
	var held, blank bool
	if err := calling(s, k, func(ctx context.Context) (err error) { held, blank, err = st.Held(ctx); return err }); err != nil {
		return err
	}
	if !held {
		_, err := fmt.Fprintf(s.out, "%s: nothing is held back, so there is nothing to declare\n", st.URL)
		return err
	}
	if !c.Yes && !blank {
		err := confirmNew(st.URL + " was used before, so it does not look brand-new; if it has lost something, locks may be granted and values handed out twice")
		if err != nil {
			return err
		}
	}
	if err := calling(s, k, st.Init); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s is declared new: locks are granted and sequences go on from now on\n", st.URL)
	return err
}

type storeFenceCmd struct{ storeFlags }

// Run fences the store of locks and sequences.
func (c *storeFenceCmd) Run(s *system) error {
	k, err := c.open(s)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close(s.ctx) }()
	st := k.Store
	if err := elsewhere("fence it", "store", st.URL); err != nil {
		return err
	}
	var fence *backend.Fence
	err = calling(s, k, func(ctx context.Context) (err error) { fence, err = st.Fence(ctx); return err })
	if fence, err = stillFenced(st.URL, fence, err); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s: no lock is granted until %s, and no sequence goes on until an operator says how (docs/sequences.md)\n",
		st.URL, snowflake.FormatMS(fence.UntilMS))
	return err
}
