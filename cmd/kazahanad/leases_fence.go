package main

import (
	"fmt"
	"strings"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// onlyFiles is the error for a provider that is not a file.
func onlyFiles(what string, info provider.Info) error {
	if strings.HasPrefix(info.Name, "http") {
		return fmt.Errorf("provider %s: %s where the lease server keeps its leases, with the URL that it has in the server's provider key", info.Name, what)
	}
	return fmt.Errorf("provider %s: it is not an SQLite file; docs/changing-providers.md says how to back it up and restore it", info.Name)
}

type leasesFenceCmd struct{ providerFlags }

// Run fences the provider's leases.
func (c *leasesFenceCmd) Run(s *system) error {
	st, err := c.open(s)
	if err != nil {
		return err
	}
	defer st.Close()
	if !st.Info().Can.Fence {
		return onlyFiles("fence it", st.Info())
	}
	fenced, err := st.Fence(s.ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s: no machine ID is granted until %s\n", st.Info().URL, snowflake.FormatMS(fenced.UntilMS))
	return err
}
