package redis

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// maxLowBits is how many low bits scripts can count with: a Lua number is exact
// up to 2^53.
const maxLowBits = 53

// Config says which Redis to use and what to grant from it.
type Config struct {
	redisconn.Config
	Services provider.Services
	// ClientID names this client in the records of its grants; empty means one
	// that Open makes up.
	ClientID string
}

// Schemes returns the URL schemes of this provider.
func Schemes() []string { return redisconn.Schemes() }

// ParseURL reads a provider URL. Its parameters set the terms of services that
// named does not have. It touches neither the network nor a file. Errors do not
// repeat what may be a password.
func ParseURL(rawURL string, named map[string]provider.Terms) (Config, error) {
	conn, q, err := redisconn.ParseURL(rawURL, provider.TermsParams())
	if err != nil {
		return Config{}, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return Config{}, err
	}
	cfg := Config{Config: conn, Services: provider.Services{Default: terms, Named: named}}
	return cfg, cfg.validate()
}

func (c Config) validate() error {
	if err := c.Config.Validate(); err != nil {
		return err
	}
	if err := c.Services.Validate(); err != nil {
		return err
	}
	for _, t := range c.Services.All() {
		if low := t.Timeline.LowBits(); low > maxLowBits {
			return fmt.Errorf("bit_ts is %d, which leaves %d bits for machine ID and sequence: on Redis those are at most %d, so bit_ts must be at least %d",
				t.Timeline.BitTS, low, maxLowBits, snowflake.ValueBits-maxLowBits)
		}
	}
	return nil
}

// longestMS is the longest time from a grant to its end in the pool, on the
// terms that are configured here.
func (c Config) longestMS(pool string) int64 {
	var longest int64
	for _, t := range c.Services.All() {
		if t.Pool == pool {
			longest = max(longest, (t.Term + t.Quarantine).Milliseconds())
		}
	}
	return longest
}

// forgetful reports whether the fence can end before a lost grant has: then
// another client may be granted the slot of a living lease.
func (c Config) forgetful() bool {
	return c.FailoverFenceSet && slices.ContainsFunc(c.Services.All(), func(t provider.Terms) bool {
		return c.FailoverFence.Milliseconds() < c.longestMS(t.Pool)
	})
}

// Info describes the provider that Open opens.
func (c Config) Info() provider.Info {
	text := c.Place()
	var more []string
	if c.Prefix != redisconn.DefaultPrefix {
		more = append(more, "prefix="+url.QueryEscape(c.Prefix))
	}
	if ids := c.Services.Default.IDs; !ids.IsAll() {
		more = append(more, "ids="+ids.String())
	}
	if len(more) > 0 {
		separator := "?"
		if strings.Contains(text, "?") {
			separator = "&"
		}
		text += separator + strings.Join(more, "&")
	}
	return provider.Info{
		Forgetful: c.forgetful(), Name: c.Scheme, URL: text, Scope: provider.ScopeShared, OwnClock: true, Coordinated: true,
		History: fmt.Sprintf("grants for %d hours after their end, and the last %d at most", historyKept/time.Hour, historyMax),
		Can:     provider.Can{Verify: true, List: true, Extend: true, Locate: true, Count: true, Init: true},
	}
}
