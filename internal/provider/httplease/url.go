package httplease

import (
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
	return Config{cfg}, err
}

// Info describes the provider that New makes.
func (c Config) Info() provider.Info {
	return provider.Info{
		Name: c.Servers[0].Scheme, URL: c.Names(),
		Scope: provider.ScopeShared, Coordinated: true,
	}
}
