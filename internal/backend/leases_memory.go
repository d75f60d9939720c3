package backend

import (
	"errors"
	"net/url"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	recordmemory "github.com/kazahana/kazahana/internal/record/memory"
)

// openMemoryLeases opens memory:, a store of its own, which ends with the process.
func openMemoryLeases(u *url.URL, opts ProviderOptions) (*pool.Provider, error) {
	if u.Opaque != "" || u.Host != "" || u.Path != "" {
		return nil, errors.New("memory: has no path; parameters follow after '?'")
	}
	services, err := servicesOf(u, opts)
	if err != nil {
		return nil, err
	}
	records := recordmemory.NewArea(pool.AreaOf(services), opts.NowMS)
	return pool.New(pool.Config{
		Records: records, Services: services, NowMS: records.NowMS, Fence: records.Fence,
		Info: provider.Info{Name: "memory", URL: "memory:", Scope: provider.ScopeUnverified},
		// Tests count on the lowest machine IDs.
		Random: func(int64) int64 { return 0 },
	})
}

// servicesOf returns the terms of all services: a service without terms of its own has those of
// the URL's parameters.
func servicesOf(u *url.URL, opts ProviderOptions) (provider.Services, error) {
	q, err := connurl.ParseQuery(u.RawQuery, provider.TermsParams())
	if err != nil {
		return provider.Services{}, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return provider.Services{}, err
	}
	services := opts.services(terms)
	return services, services.Validate()
}
