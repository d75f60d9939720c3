package main

import (
	"fmt"
	"strings"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// notFenced is the error for a provider that is not fenced by hand.
func notFenced(info provider.Info) error {
	if strings.HasPrefix(info.Name, "http") {
		return fmt.Errorf("provider %s: fence it where the lease server keeps its leases, with the URL that it has in the server's provider key", info.Name)
	}
	return fmt.Errorf("provider %s: it is not fenced by hand; docs/changing-providers.md says how to restore it", info.Name)
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
		return notFenced(st.Info())
	}
	fenced, err := st.Fence(s.ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s: no machine ID is granted until %s\n", st.Info().URL, snowflake.FormatMS(fenced.UntilMS))
	return err
}
