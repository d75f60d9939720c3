package etcd

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/provider"
)

// Config says which etcd to use, and what to grant from it.
type Config struct {
	etcdconn.Config
	Services provider.Services
	NowMS    func() int64 // this host's clock in Unix ms; nil means the wall clock
	// Host tells this host's clock from others'; empty means the host's name.
	Host string
}

// ParseURL reads etcd://HOST:PORT,HOST:PORT,... . The URL's parameters set the
// terms of services that named does not have. It reaches out to nothing and
// reads no file. Errors repeat no part of the URL that may hold a secret.
func ParseURL(raw string, named map[string]provider.Terms, nowMS func() int64) (Config, error) {
	conn, q, err := etcdconn.ParseURL(raw, provider.TermsParams())
	if err != nil {
		return Config{}, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return Config{}, err
	}
	cfg := Config{Config: conn, NowMS: nowMS, Services: provider.Services{Default: terms, Named: named}}
	return cfg, cfg.Services.Validate()
}

// Info describes the provider that Open opens.
func (c Config) Info() provider.Info {
	u := c.Place()
	q := url.Values{}
	if c.Prefix != etcdconn.DefaultPrefix {
		q.Set("prefix", c.Prefix)
	}
	if pool := c.Services.Default.Pool; pool != provider.DefaultPool {
		q.Set("pool", pool)
	}
	if ids := c.Services.Default.IDs; !ids.IsAll() {
		q.Set("ids", ids.String())
	}
	if len(q) > 0 {
		u += "?" + strings.ReplaceAll(q.Encode(), "%2F", "/")
	}
	return provider.Info{
		Name: "etcd", URL: u, Scope: provider.ScopeShared, Coordinated: true,
		History: fmt.Sprintf("about the last %d grants, shared out among the machine IDs, of each the last %d at most", maxHistory, maxHistoryPerSlot),
		Can:     provider.Can{Verify: true, List: true, Extend: true, Locate: true, Count: true},
	}
}
