package static

import (
	"context"
	"errors"
	"net/url"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// None is the provider none:, which grants nothing: every ID is a fallback ID.
type None struct{ provider.Lacking }

var _ provider.Provider = None{}

// FromNoneURL opens none:, which takes no parameters.
func FromNoneURL(u *url.URL) (None, error) {
	if _, err := connurl.ParseQuery(u.RawQuery, nil); err != nil {
		return None{}, err
	}
	if u.Opaque != "" || u.Host != "" || u.Path != "" {
		return None{}, errors.New("none: has nothing after the colon")
	}
	return None{"none"}, nil
}

// Acquire returns provider.ErrNone.
func (None) Acquire(context.Context, provider.AcquireRequest) ([]lease.Lease, error) {
	return nil, provider.ErrNone
}

// Release returns provider.ErrNone.
func (None) Release(context.Context, provider.ReleaseRequest) error { return provider.ErrNone }

// Info implements provider.Provider.
func (None) Info() provider.Info {
	return provider.Info{Name: "none", URL: "none:", Scope: provider.ScopeNone}
}

// Close implements provider.Provider.
func (None) Close() error { return nil }
