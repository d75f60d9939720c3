package kubernetes

import (
	"fmt"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/provider"
)

// Config says which namespace to use and what to grant in it.
type Config struct {
	kubeconn.Config
	Services provider.Services
}

// Schemes returns the URL schemes of this provider.
func Schemes() []string { return []string{kubeconn.Scheme} }

// ParseURL reads kubernetes:[NAMESPACE][?PARAMETERS]. services are the terms of all services, where
// the parameters say terms. It touches neither the network nor a file. nowMS is this host's
// believed clock in Unix ms.
func ParseURL(rawURL string, services func(provider.Terms) provider.Services, nowMS func() int64) (Config, error) {
	conn, q, err := kubeconn.ParseURL(rawURL, provider.TermsParams())
	if err != nil {
		return Config{}, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return Config{}, err
	}
	conn.NowMS = nowMS
	cfg := Config{Config: conn, Services: services(terms)}
	return cfg, cfg.validate()
}

// validate reports terms that no pool in Kubernetes can have.
func (c Config) validate() error {
	if err := c.Services.Validate(); err != nil {
		return err
	}
	layouts := map[string]int{}
	for _, t := range c.Services.All() {
		if !kubeconn.IsDNSLabel(t.Pool) {
			return fmt.Errorf("pool %q: with Kubernetes a pool's name is 1 to 63 lower-case letters, digits or '-', as in the names of objects", t.Pool)
		}
		if bitSeq, ok := layouts[t.Pool]; ok && bitSeq != t.BitSeq {
			return fmt.Errorf("pool %q is asked for with bit_seq %d and %d: with Kubernetes a pool has one layout; give the services pools of their own",
				t.Pool, min(bitSeq, t.BitSeq), max(bitSeq, t.BitSeq))
		}
		layouts[t.Pool] = t.BitSeq
	}
	return nil
}

// Info describes the provider that Open opens.
func (c Config) Info() provider.Info {
	return provider.Info{
		Name: "kubernetes", URL: c.Services.Default.At(c.Place()), Scope: provider.ScopeShared, Coordinated: true,
	}
}
