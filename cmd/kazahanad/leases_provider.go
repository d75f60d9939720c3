package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
)

// serveFlags are flags of serve for commands that open its provider or its store without a
// daemon. Their defaults are serve's.
type serveFlags struct {
	Config   string `name:"config" placeholder:"FILE" help:"The daemon's YAML file; none reads no file (default $KAZAHANA_CONFIG, else /etc/kazahana/kazahanad.yaml, if present)."`
	StateDir string `name:"state-dir" placeholder:"DIR" help:"State directory, where the default provider has its file (default as for serve)."`
	Provider string `name:"provider" placeholder:"URL" help:"What grants machine IDs (default as for serve)."`
}

// providerFlags name the provider of commands that talk to it without a daemon.
type providerFlags struct {
	serveFlags
	Service string `name:"service" placeholder:"NAME" help:"Service, which determines the pool of machine IDs (default as for serve)."`
}

// providerKeys are the daemon's keys that name its provider. These commands ignore all
// others, also invalid ones.
var providerKeys = []string{"state_dir", "live_dir", "provider", "store", "provider_timeout", "service", "meta", "max_keys", "max_disk"}

// leaseKeys are the keys that say on what terms leases are granted, beside providerKeys: the terms of
// services, and layout for the URL of the default provider. A provider that was named on the command
// line, and takes no terms, is not held to those of the file; nor is one that takes some, where the
// daemon has one that takes none.
func (f *serveFlags) leaseKeys() []string {
	switch {
	case f.Provider == "":
		return slices.Concat(providerKeys, []string{"services", "layout"})
	case config.TakesTerms(f.Provider):
		return slices.Concat(providerKeys, []string{"services"})
	}
	return providerKeys
}

// options are those of the provider for a command that asks for one service.
func (f *serveFlags) options(service string, settings *config.Serve) (backend.ProviderOptions, error) {
	switch {
	case !config.TakesTerms(settings.Provider):
		return backend.ProviderOptions{}, nil
	case f.Provider != "":
		return backend.OptionsToAsk(settings.Provider, service, settings)
	}
	return backend.OptionsFor(settings.Provider, service, settings)
}

// args are the flags of serve that were given.
func (f *serveFlags) args() []string {
	return slices.Concat(given("config", f.Config), given("state-dir", f.StateDir), given("provider", f.Provider))
}

// given returns a flag of serve for a given one.
func given(name, text string) []string {
	if text == "" {
		return nil
	}
	return []string{"--" + name + "=" + text}
}

// loadOnly reads the daemon's configuration for a command that needs little of it.
func loadOnly(s *system, args, keys []string) (*config.Serve, error) {
	var settings config.Serve
	if err := settings.Load(&settings, args, s.process(keys...)); err != nil {
		return nil, usageError{err}
	}
	return &settings, nil
}

// process is this process as the configuration depends on it. Of the environment and the
// file, only the given keys count, or all if there are none.
func (s *system) process(only ...string) config.Process {
	return config.Process{Environ: s.env, UID: s.uid, Now: s.now(), Only: only}
}

// store is a provider that a command has opened.
type store struct {
	provider.Provider
	url     string // may hold a password
	options backend.ProviderOptions
	service string
	timeout time.Duration // of one call
	limited bool          // to the records of the service, because it was named
}

// open opens the provider. It does not create one.
func (f *providerFlags) open(s *system) (*store, error) {
	settings, err := loadOnly(s, f.args(), f.leaseKeys())
	if err != nil {
		return nil, err
	}
	st := &store{url: settings.Provider, service: settings.DefaultService, timeout: settings.ProviderTimeout}
	if f.Service != "" {
		st.service, st.limited = f.Service, true
	}
	if st.options, err = f.options(st.service, settings); err != nil {
		return nil, usageError{err}
	}
	return st, st.open(s.ctx)
}

func (st *store) open(ctx context.Context) error {
	p, err := backend.OpenProvider(st.url, st.options)
	if err != nil {
		return usageError{fmt.Errorf("provider: %w", err)}
	}
	if missing := missingFile(st.url); missing != "" {
		return errors.Join(fmt.Errorf("sqlite:%s: there is no such file, so nothing was granted from it; name another with --provider, or start the daemon first", missing), p.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, st.timeout)
	defer cancel()
	if err := backend.Opened(ctx, p); err != nil {
		return errors.Join(err, p.Close())
	}
	st.Provider = p
	return nil
}

// missingFile returns the path of a URL sqlite:PATH if the file does not exist, else "".
// A command that opened it would create it, owned by the command's user instead of
// the daemon's.
func missingFile(rawURL string) string {
	path, _, err := sqlitefile.ParseURL(rawURL, "")
	if err != nil { // another store, or opening it explains the error
		return ""
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return path
	}
	return ""
}

// within calls the provider with its time limit.
func (st *store) within(s *system, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, st.timeout)
	defer cancel()
	err := call(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("provider %s: no answer within %v: %w", st.Info().URL, st.timeout, err)
	}
	return err
}

// list returns the grants of a service's pool.
func (st *store) list(s *system, service string) (all []provider.Record, err error) {
	err = st.within(s, func(ctx context.Context) error {
		all, err = st.List(ctx, service)
		return err
	})
	return all, err
}

// records returns all grants, and those of the service if one was named.
func (st *store) records(s *system) (all, wanted []provider.Record, err error) {
	if all, err = st.list(s, st.service); err != nil {
		return nil, nil, err
	}
	wanted = all
	if st.limited {
		wanted = slices.DeleteFunc(slices.Clone(all), func(r provider.Record) bool { return r.Service != st.service })
	}
	return all, wanted, nil
}

// terms returns the service's; false if a server decides on them.
func (st *store) terms() (provider.Terms, bool) {
	if !config.TakesTerms(st.url) {
		return provider.Terms{}, false
	}
	services, err := st.options.TermsIn(st.url)
	return services.Of(st.service), err == nil
}
