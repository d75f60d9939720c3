package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
)

type backupCmd struct {
	storeFlags
	Dir string `arg:"DIR" help:"Directory of the copies, which is made if it does not exist. Nothing in it is overwritten. The copies hold secrets, so their mode is 0600."`
}

// Help is the text below the usage line.
func (*backupCmd) Help() string {
	return `It copies leases.db and store.db, as far as they exist, also while daemons and lease servers use them. Run it as their user, or as root. ` +
		`docs/changing-providers.md says how to restore the copies. A restored file grants nothing until every lease and lock that it does not know has ended.`
}

// Run copies the provider's file and the store's.
func (c *backupCmd) Run(s *system) error {
	settings, err := c.settings(s)
	if err != nil {
		return err
	}
	store := cmp.Or(settings.Store, backend.Beside(settings.Provider, settings.StateDir))
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	copied := false
	for _, file := range []struct {
		url, name string
		copy      func(ctx context.Context, url, to string) error
	}{
		{settings.Provider, "leases.db", backupLeases},
		{store, sqlitefile.StoreName, backupStore},
	} {
		if schemeOf(file.url) != sqlitefile.Scheme || missingFile(file.url) != "" {
			continue
		}
		to := filepath.Join(dir, file.name)
		if err := file.copy(s.ctx, file.url, to); err != nil {
			return err
		}
		copied = true
		if _, err := fmt.Fprintf(s.out, "%s is copied to %s\n", file.url, to); err != nil {
			return err
		}
	}
	if !copied {
		return fmt.Errorf("there is no SQLite file to copy: provider %s, store %s. Files behind a lease server are copied on its host, with the URLs that it has; "+
			"docs/changing-providers.md says how other stores are backed up", config.Redact(settings.Provider), config.Redact(cmp.Or(store, "none")))
	}
	return nil
}

func backupLeases(ctx context.Context, url, to string) error {
	p, err := backend.OpenProvider(url, backend.ProviderOptions{})
	if err != nil {
		return usageError{fmt.Errorf("provider: %w", err)}
	}
	defer p.Close()
	return p.(*backend.Leases).Backup(ctx, to)
}

func backupStore(ctx context.Context, url, to string) error {
	st, err := backend.OpenStore(url, backend.StoreOptions{Ignore: provider.TermsParams()})
	if err != nil {
		return usageError{fmt.Errorf("store: %w", err)}
	}
	return errors.Join(st.Backup(ctx, to), st.Close())
}
