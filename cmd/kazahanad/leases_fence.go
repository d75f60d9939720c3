package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// storeOf opens the store of locks and sequences that belongs to the provider: the
// file that a daemon started here would use, or the provider's own store. It returns
// nil if there is none or it was never used.
func (f *providerFlags) storeOf(st *store) (*backend.Store, error) {
	url, opts := st.url, backend.StoreOptions{Ignore: provider.TermsParams()}
	if schemeOf(url) == kubeconn.Scheme { // no store goes with it
		return nil, nil
	}
	if st.Info().Name == "sqlite" {
		url = backend.Beside(st.url, "")
		if named := st.store; named != "" && f.Provider == "" {
			url = named
		}
		if schemeOf(url) != sqlitefile.Scheme || missingFile(url) != "" {
			return nil, nil
		}
	}
	beside, err := backend.OpenStore(url, opts)
	if err != nil {
		return nil, usageError{fmt.Errorf("store: %w", err)}
	}
	return beside, nil
}

// lacksNothing reports whether the provider's file and the store beside it are
// certain to have forgotten nothing. Other stores never are.
func lacksNothing(s *system, st *store, beside *backend.Store) bool {
	if !st.Info().Can.Fence || st.Fenced() != nil || schemeOf(st.url) == kubeconn.Scheme {
		return false
	}
	if beside == nil {
		return true
	}
	_, err := within(s, st, func(ctx context.Context) (struct{}, error) { return struct{}{}, beside.Look(ctx) })
	return err == nil && beside.Fenced() == nil
}

// onlyFiles is the error for a provider that is not a file.
func onlyFiles(what string, info provider.Info) error {
	if strings.HasPrefix(info.Name, "http") {
		return fmt.Errorf("provider %s: %s where the lease server keeps its leases, with the URL that it has in the server's provider key", info.Name, what)
	}
	return fmt.Errorf("provider %s: it is not an SQLite file; docs/changing-providers.md says how to back it up and restore it", info.Name)
}

type leasesFenceCmd struct{ providerFlags }

// Run fences the provider's file, and the store's beside it.
func (c *leasesFenceCmd) Run(s *system) error {
	st, err := c.open(s)
	if err != nil {
		return err
	}
	defer st.Close()
	if !st.Info().Can.Fence {
		return onlyFiles("fence it", st.Info())
	}
	beside, err := c.storeOf(st)
	if err != nil {
		return err
	}
	if beside != nil {
		defer beside.Close()
	}
	fenced, err := st.Fence(s.ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.out, "%s: no machine ID is granted until %s\n", st.Info().URL, snowflake.FormatMS(fenced.UntilMS)); err != nil || beside == nil {
		return err
	}
	fence, err := beside.Fence(s.ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s: no lock is granted until %s, and no sequence goes on until an operator says how (docs/sequences.md)\n",
		beside.URL, snowflake.FormatMS(fence.UntilMS))
	return err
}
