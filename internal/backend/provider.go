// Package backend opens what a URL names, at its first use: a provider of leases, or the
// store of locks, sequences and activation records. It is the one place that knows them all.
package backend

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/httplease"
	"github.com/kazahana/kazahana/internal/provider/kubernetes"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/provider/static"
	recordmemory "github.com/kazahana/kazahana/internal/record/memory"
)

// ProviderOptions are what a URL does not say.
type ProviderOptions struct {
	// Services has terms of single services; all others have those of the URL.
	// static:, ip:, none: and http: take none.
	Services map[string]provider.Terms
	// Default stands for the URL's terms where no service has those, so that they need not
	// fit the store. The zero value: the URL's.
	Default provider.Terms
	// NowMS is the clock of providers that use this host's, in Unix
	// milliseconds; nil means the wall clock.
	NowMS func() int64
	// LiveDir is a directory in memory where the provider on SQLite keeps what
	// tells its file from an older copy; "" for none.
	LiveDir string
}

// TermsIn are the terms of all services on the provider that the URL names.
func (o ProviderOptions) TermsIn(rawURL string) (provider.Services, error) {
	base, err := Terms(rawURL)
	return o.services(base), err
}

// services are the terms of all services, where the URL says terms.
func (o ProviderOptions) services(ofURL provider.Terms) provider.Services {
	if o.Default != (provider.Terms{}) {
		ofURL = o.Default
	}
	return provider.Services{Default: ofURL, Named: o.Services}
}

// Schemes returns the schemes that OpenProvider knows.
func Schemes() []string {
	return slices.Concat([]string{"memory", "none", "static", "ip", "sqlite"}, serverSchemes(), kubernetes.Schemes(), httpconn.Schemes())
}

// OpenProvider returns the provider that the URL names. It reaches out to nothing: a
// store is opened at its first use, and tried again at the next when it cannot
// be, so that a daemon starts with its store in any state. The error names the fault of
// the URL, and never repeats a part of it that may hold a secret.
func OpenProvider(rawURL string, opts ProviderOptions) (provider.Provider, error) {
	scheme, _, ok := strings.Cut(rawURL, ":")
	if !ok || !validScheme(scheme) {
		if filepath.IsAbs(rawURL) {
			return nil, fmt.Errorf("a provider is named by a URL: for this file write sqlite:%s", rawURL)
		}
		return nil, fmt.Errorf("a provider is named by a URL that begins with one of %s", schemeList())
	}
	scheme = strings.ToLower(scheme)
	if !slices.Contains(Schemes(), scheme) {
		return nil, fmt.Errorf("there is no provider %q: the URL must begin with one of %s", scheme, schemeList())
	}
	switch {
	case slices.Contains(httpconn.Schemes(), scheme):
		return openHTTPProvider(rawURL, opts)
	case slices.Contains(serverSchemes(), scheme):
		on, params, err := parseServer(scheme, rawURL, provider.TermsParams(), opts.NowMS)
		if err != nil {
			return nil, err
		}
		services, err := opts.servicesOf(params)
		if err != nil {
			return nil, err
		}
		return asProvider(on.leases(services))
	case slices.Contains(kubernetes.Schemes(), scheme):
		cfg, err := kubernetes.ParseURL(rawURL, opts.services, opts.NowMS)
		if err != nil {
			return nil, err
		}
		return asProvider(kubernetes.Open(cfg))
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		// The parser's error repeats the URL, or a part of it.
		return nil, fmt.Errorf("the provider URL %s:... is malformed: special characters must be percent-encoded", scheme)
	}
	if u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("the provider URL %s:... has a part that this provider does not take: a user or password, or something after '#' (in a path, write %%23)", scheme)
	}
	switch scheme {
	case "memory":
		return asProvider(openMemoryLeases(u, opts))
	case "sqlite":
		cfg, err := ParseLeaseFile(u, opts)
		if err != nil {
			return nil, err
		}
		return asProvider(lazyLeases(cfg.pool(), cfg.open))
	}
	if len(opts.Services) > 0 {
		return nil, fmt.Errorf("%s: coordinates no services, so it takes no terms of single ones: they need a provider that does", scheme)
	}
	switch scheme {
	case "none":
		return asProvider(static.FromNoneURL(u))
	case "ip":
		return asProvider(static.FromIPURL(u, opts.NowMS, nil))
	}
	return asProvider(static.FromStaticURL(u, opts.NowMS))
}

// servicesOf returns the terms of all services: a service without terms of its own has those of
// the URL's parameters.
func (o ProviderOptions) servicesOf(params url.Values) (provider.Services, error) {
	terms, err := provider.ParseTerms(params)
	if err != nil {
		return provider.Services{}, err
	}
	services := o.services(terms)
	return services, services.Validate()
}

// openMemoryLeases opens memory:, a store of its own, which ends with the process.
func openMemoryLeases(u *url.URL, opts ProviderOptions) (*pool.Provider, error) {
	if u.Opaque != "" || u.Host != "" || u.Path != "" {
		return nil, errors.New("memory: has no path; parameters follow after '?'")
	}
	params, err := connurl.ParseQuery(u.RawQuery, provider.TermsParams())
	if err != nil {
		return nil, err
	}
	services, err := opts.servicesOf(params)
	if err != nil {
		return nil, err
	}
	return pool.New(pool.Config{
		Records: recordmemory.NewArea(pool.AreaOf(services), opts.NowMS), Services: services,
		Info: provider.Info{Name: "memory", URL: "memory:", Scope: provider.ScopeUnverified},
		// Tests count on the lowest machine IDs.
		Random: func(int64) int64 { return 0 },
	})
}

func openHTTPProvider(rawURL string, opts ProviderOptions) (provider.Provider, error) {
	if len(opts.Services) > 0 {
		return nil, errors.New("http: the terms of services are set on the lease server that the URL names, and not here")
	}
	cfg, err := httpconn.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return asProvider(httplease.New(cfg))
}

// asProvider passes on what a constructor returned, since an interface that holds a
// nil pointer is not nil.
func asProvider[P provider.Provider](p P, err error) (provider.Provider, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

// validScheme reports whether s can be a scheme, and so be shown.
func validScheme(s string) bool {
	for i, c := range []byte(strings.ToLower(s)) {
		letter := 'a' <= c && c <= 'z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789+-.", rune(c))) {
			return false
		}
	}
	return s != "" && len(s) <= 32
}

func schemeList() string { return strings.Join(Schemes(), ":, ") + ":" }
