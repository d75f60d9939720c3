package httplease

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/provider"
)

// Config says which servers to ask, and as whom.
type Config struct{ httpconn.Config }

// SchemeUnix is the scheme of a lease server on a Unix socket.
const SchemeUnix = httpconn.SchemeUnix

// Schemes returns the schemes that ParseURL knows.
func Schemes() []string { return httpconn.Schemes() }

// ParseURL is httpconn.ParseURL. Terms are not among the parameters: the server decides on them.
func ParseURL(raw string) (Config, error) {
	cfg, err := httpconn.ParseURL(raw)
	if err != nil {
		_, query, _ := strings.Cut(raw, "?")
		return Config{}, withTermsHint(query, err)
	}
	return Config{cfg}, nil
}

// withTermsHint explains why terms, which other providers take, are unknown.
func withTermsHint(query string, err error) error {
	given, parseErr := url.ParseQuery(query)
	if parseErr != nil {
		return err
	}
	for _, name := range provider.TermsParams() {
		if given.Has(name) {
			return fmt.Errorf("the provider URL has the parameter %q: a lease server decides on %s itself, in its services map", name, name)
		}
	}
	return err
}

// Info describes the provider that New makes.
func (c Config) Info() provider.Info {
	return provider.Info{
		Name: c.Servers[0].Scheme, URL: c.Names(),
		Scope: provider.ScopeShared, Coordinated: true,
		Can: provider.Can{Verify: true, List: true, Extend: true, Locate: true},
	}
}
