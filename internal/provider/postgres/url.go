package postgres

import (
	"fmt"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/provider"
)

// historyKept is how long after its end a grant is remembered.
const historyKept = 48 * time.Hour

// Config says which server to use and what to grant from it.
type Config struct {
	postgresconn.Config
	Services provider.Services
}

// Schemes returns the URL schemes of this provider.
func Schemes() []string { return postgresconn.Schemes() }

// ParseURL reads a provider URL. Its parameters set the terms of services that named
// does not have. It touches neither the network nor a file.
func ParseURL(rawURL string, named map[string]provider.Terms) (Config, error) {
	conn, q, err := postgresconn.ParseURL(rawURL, provider.TermsParams())
	if err != nil {
		return Config{}, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return Config{}, err
	}
	cfg := Config{Config: conn, Services: provider.Services{Default: terms, Named: named}}
	return cfg, cfg.Services.Validate()
}

// Info describes the provider that Open opens.
func (c Config) Info() provider.Info {
	text := c.Place()
	if ids := c.Services.Default.IDs; !ids.IsAll() {
		separator := "?"
		if strings.Contains(text, separator) {
			separator = "&"
		}
		text += separator + "ids=" + ids.String()
	}
	return provider.Info{
		Name: "postgres", URL: text, Scope: provider.ScopeShared, OwnClock: true, Coordinated: true,
		Forgetful: c.FailoverFenceSet && c.FailoverFence.Milliseconds() < c.Services.LongestMS(),
		History:   fmt.Sprintf("grants for %d days after their end", historyKept/(24*time.Hour)),
		Can:       provider.Can{Verify: true, List: true, Extend: true, Locate: true, Count: true, Init: true, Fence: true},
	}
}
