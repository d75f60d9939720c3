package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// storeOf opens the store of locks and sequences that belongs to the provider: the
// file that a daemon started here would use, or the provider's own store. It returns
// nil if there is none or it was never used.
func (f *providerFlags) storeOf(st *store) (*backend.Store, error) {
	url, opts := st.url, backend.StoreOptions{Ignore: provider.TermsParams()}
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
	if !st.Info().Can.Fence || st.Fenced() != nil {
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

type leasesBackupCmd struct {
	providerFlags
	Store bool   `help:"Copy the store of locks and sequences instead."`
	File  string `arg:"" name:"FILE" help:"The copy, which must not exist. It has the leases' secrets, so its mode is 0600."`
}

// Help is the text that kong prints below the usage line.
func (*leasesBackupCmd) Help() string {
	return `docs/changing-providers.md says how to restore the copy. A restored file grants nothing until every lease and lock that it ` +
		`does not know has ended.`
}

// Run copies the provider's file, or the store's.
func (c *leasesBackupCmd) Run(s *system) error {
	st, err := c.open(s)
	if err != nil {
		return err
	}
	defer st.Close()
	backup, ok := st.Provider.(interface {
		Backup(ctx context.Context, to string) error
	})
	if !ok {
		return onlyFiles("back it up", st.Info())
	}
	from := st.Info().URL
	if c.Store {
		beside, err := c.storeOf(st)
		if err != nil {
			return err
		}
		if beside == nil {
			return errors.New("there is no file of locks and sequences: they were never used, or are kept elsewhere")
		}
		defer beside.Close()
		backup, from = beside, beside.URL
	}
	to, err := filepath.Abs(c.File)
	if err != nil {
		return err
	}
	if err := backup.Backup(s.ctx, to); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s is copied to %s\n", from, to)
	return err
}
