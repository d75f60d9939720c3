package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/httplease"
)

// providerFlags name the provider of commands that talk to it without a daemon.
// Their defaults are serve's.
type providerFlags struct {
	Config   string `placeholder:"FILE" help:"The daemon's YAML file; none reads no file (default $$KAZAHANA_CONFIG, else /etc/kazahana/kazahanad.yaml, if present)."`
	StateDir string `placeholder:"DIR" help:"State directory, where the default provider has its file (default as for serve)."`
	Provider string `placeholder:"URL" help:"What grants machine IDs (default as for serve)."`
	Service  string `placeholder:"NAME" help:"Service, which determines the pool of machine IDs (default as for serve)."`
}

// providerVariables are the daemon's variables that name its provider. These
// commands ignore all others, also invalid ones.
var providerVariables = []string{
	"KAZAHANA_CONFIG", "KAZAHANA_STATE_DIR", "KAZAHANA_PROVIDER", "KAZAHANA_STORE", "KAZAHANA_PROVIDER_TIMEOUT", "KAZAHANA_SERVICE", "KAZAHANA_META",
}

// settings are the settings that a daemon started here would have.
func (f *providerFlags) settings(s *system) (*config.Serve, error) {
	return loadOnly(s, f.flags(), providerVariables)
}

// flags are the daemon's flags that were given.
func (f *providerFlags) flags() (flags config.Flags) {
	give(f.Config, &flags.Config)
	give(f.StateDir, &flags.StateDir)
	give(f.Provider, &flags.Provider)
	return flags
}

// give passes on a flag that was given.
func give(text string, into *config.Text) {
	if text != "" {
		*into = config.Given(text)
	}
}

// loadOnly reads the daemon's configuration for a command that needs little of it:
// of the environment it reads only the given variables.
func loadOnly(s *system, flags config.Flags, variables []string) (*config.Serve, error) {
	settings, err := flags.Load(processOnly(s, variables))
	if err != nil {
		return nil, usageError{err}
	}
	return settings, nil
}

// processOnly is this process, with none of the daemon's variables but these.
func processOnly(s *system, variables []string) config.Process {
	environ := slices.DeleteFunc(slices.Clone(s.env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, "KAZAHANA_") && !slices.Contains(variables, name)
	})
	return config.Process{Environ: environ, UID: s.uid, Now: s.now()}
}

// store is a provider that a command has opened.
type store struct {
	provider.Provider
	url     string // may hold a password
	store   string // URL of the store of locks and sequences, where one is configured
	service string
	timeout time.Duration // of one call
	limited bool          // to the records of the service, because it was named
}

// open opens the provider. It does not create one.
func (f *providerFlags) open(s *system) (*store, error) {
	settings, err := f.settings(s)
	if err != nil {
		return nil, err
	}
	st := &store{url: settings.Provider, store: settings.Store, service: settings.DefaultService, timeout: settings.ProviderTimeout}
	if f.Service != "" {
		st.service, st.limited = f.Service, true
	}
	return st, st.open(s.ctx)
}

func (st *store) open(ctx context.Context) error {
	p, err := backend.OpenProvider(st.url, backend.ProviderOptions{})
	if err != nil {
		return usageError{fmt.Errorf("provider: %w", err)}
	}
	if missing := missingFile(st.url); missing != "" {
		return errors.Join(fmt.Errorf("sqlite:%s: there is no such file, so nothing was granted from it; name another with --provider, or start the daemon first", missing), p.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, st.timeout)
	defer cancel()
	if st.Provider, err = backend.OpenedProvider(ctx, p); err != nil {
		return errors.Join(err, p.Close())
	}
	return nil
}

// missingFile is the path of a URL sqlite:PATH whose file does not exist, else "".
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
func within[T any](s *system, st *store, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(s.ctx, st.timeout)
	defer cancel()
	v, err := call(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("provider %s: no answer within %v: %w", st.Info().URL, st.timeout, err)
	}
	return v, err
}

// records returns all grants, and those of the service if one was named.
func (st *store) records(s *system) (all, wanted []provider.Record, err error) {
	if !st.Info().Can.List {
		return nil, nil, fmt.Errorf("provider %s: it keeps no records, so there is nothing to list", st.Info().Name)
	}
	all, err = within(s, st, func(ctx context.Context) ([]provider.Record, error) { return st.List(ctx, st.service) })
	if err != nil {
		return nil, nil, err
	}
	wanted = all
	if st.limited {
		wanted = slices.DeleteFunc(slices.Clone(all), func(r provider.Record) bool { return r.Service != st.service })
	}
	return all, wanted, nil
}

// terms returns the terms in the provider's URL; false if a server decides on them.
func (st *store) terms() (provider.Terms, bool) {
	if !takesIDs(st.url) {
		return provider.Terms{}, false
	}
	t, err := backend.Terms(st.url)
	return t, err == nil
}

// takesIDs reports whether ids= can limit the provider's range of machine IDs.
func takesIDs(rawURL string) bool {
	return !slices.Contains([]string{"none", "static", "ip", "http", "https", httplease.SchemeUnix}, schemeOf(rawURL))
}
