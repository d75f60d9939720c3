package backend

import (
	"context"
	"errors"
	"strings"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	recordpostgres "github.com/kazahana/kazahana/internal/record/postgres"
)

// postgresLeases is what a URL says of leases on a PostgreSQL server. They have connections of
// their own: a flood of locks does not hold them up.
type postgresLeases struct {
	connection postgresconn.Config
	services   provider.Services
}

// parsePostgresLeases reads a provider URL.
func parsePostgresLeases(rawURL string, opts ProviderOptions) (postgresLeases, error) {
	connection, rest, err := postgresconn.ParseURL(rawURL, provider.TermsParams())
	if err != nil {
		return postgresLeases{}, err
	}
	terms, err := provider.ParseTerms(rest)
	if err != nil {
		return postgresLeases{}, err
	}
	l := postgresLeases{connection, opts.services(terms)}
	return l, l.services.Validate()
}

// Info describes the provider that open returns.
func (l postgresLeases) Info() provider.Info {
	text := l.connection.Place()
	if ids := l.services.Default.IDs; !ids.IsAll() {
		separator := "?"
		if strings.Contains(text, separator) {
			separator = "&"
		}
		text += separator + "ids=" + ids.String()
	}
	c := l.connection
	return pool.InfoOf(provider.Info{
		Name: "postgres", URL: text, Scope: provider.ScopeShared, OwnClock: true,
		Forgetful: c.FailoverFenceSet && c.FailoverFence.Milliseconds() < l.services.LongestMS(),
	}, true)
}

// open reaches out to nothing yet.
func (l postgresLeases) open() (*pool.Provider, error) {
	client, err := postgresconn.Open(l.connection)
	if err != nil {
		return nil, err
	}
	records := recordpostgres.NewLasting(client, pool.AreaOf(l.services), l.services.LongestMS())
	return pool.New(pool.Config{
		Records: records, Services: l.services, Info: l.Info(),
		Fence: func(ctx context.Context) error { _, err := records.Fence(ctx); return err },
		Close: func() error { return errors.Join(records.Close(), client.Close()) },
	})
}
