package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/sequence"
)

// declareFlags write an operator's declaration of a sequence to the store itself.
// Their defaults are serve's.
type declareFlags struct {
	Declare   *int64 `name:"declare" group:"Declaring" placeholder:"LAST" help:"Instead of taking values, say on the store that LAST was the last one handed out: the next one follows it. Nothing checks that. It ends the key's fence, and has it count as the configuration says."`
	Store     string `name:"store" group:"Declaring" placeholder:"URL" help:"The store (default as for serve)."`
	Sequences string `name:"sequences" group:"Declaring" placeholder:"MAP" help:"How keys count (default as for serve)."`
	Tenant    string `name:"tenant" group:"Declaring" default:"default" placeholder:"NAME" help:"Owner of the sequence: default, or a tenant of the lease server."`
	Config    string `name:"config" group:"Declaring" placeholder:"FILE" help:"The daemon's YAML file; none reads no file (default $KAZAHANA_CONFIG, else /etc/kazahana/kazahanad.yaml, if present)."`
	StateDir  string `name:"state-dir" group:"Declaring" placeholder:"DIR" help:"State directory (default as for serve)."`
}

// declareKeys are the daemon's keys that name the store and say how keys count.
var declareKeys = append([]string{"sequences"}, providerKeys...)

// settings are the settings that a daemon started here would have.
func (f *declareFlags) settings(s *system) (*config.Serve, error) {
	args := slices.Concat(given("config", f.Config), given("state-dir", f.StateDir), given("store", f.Store), given("sequences", f.Sequences))
	return loadOnly(s, args, declareKeys)
}

// declare writes the declaration to the store, and says how the key goes on.
func (f *declareFlags) declare(s *system, key string) error {
	settings, err := f.settings(s)
	if err != nil {
		return err
	}
	k, err := issuer.OpenKeyedStores(keyedStoresOptions(&settings.Leases, &settings.Records, "", issuer.Watching{Log: zap.NewNop()}))
	if err != nil {
		return err
	}
	if k == nil {
		return usageError{errors.New("--declare: there is no store: name one with --store")}
	}
	defer func() { _ = k.Close(s.ctx) }()
	if missing := missingFile(k.Store.URL); missing != "" {
		return fmt.Errorf("%s: there is no such file; name another with --store, or start the daemon first", missing)
	}
	d := sequence.Declaration{Tenant: f.Tenant, Key: key, Last: *f.Declare}
	d.Options, _ = k.Options(key)
	if err := d.Validate(); err != nil {
		return usageError{errors.New("--declare: " + strings.TrimPrefix(err.Error(), sequence.ErrInvalid.Error()+": "))}
	}
	ctx, cancel := context.WithTimeout(s.ctx, settings.ProviderTimeout)
	defer cancel()
	err = k.Store.Declare(ctx, d)
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("the store %s takes no declarations", k.Store.URL)
	}
	if err != nil {
		return fmt.Errorf("sequence %q on %s: %w", key, k.Store.URL, err)
	}
	_, err = fmt.Fprintf(s.out, "sequence %q on %s goes on after %d, with %s\n", key, k.Store.URL, d.Last, d.Options.Text())
	return err
}
