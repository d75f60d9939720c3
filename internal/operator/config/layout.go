package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// settleLayout makes layout, bit_ts and the provider's URL say the same. The URL
// decides which IDs a lease makes, so layout js must stand there too, unless a
// lease server has the terms; the URL's layout counts before the first lease.
func (s *Serve) settleLayout() error {
	_, query, _ := strings.Cut(s.Provider, "?")
	params, _ := url.ParseQuery(query) // the provider reports its faults
	if !s.Given("layout") && !s.Given("bit_ts") && params.Get("layout") == snowflake.NameJS {
		s.Layout = LayoutJS
	}
	if s.Layout != LayoutJS {
		return nil
	}
	if s.Given("bit_ts") {
		return fmt.Errorf("%s is %s and %s is %d: set one of them", s.Cite("layout"), s.Layout, s.Cite("bit_ts"), s.BitTS)
	}
	s.becomeJS(s.Given("max_throughput_per_ms"))
	switch kind := scheme(s.Provider); {
	case slices.Contains([]string{"http:", "https:", "http+unix:", "none:"}, kind) || params.Get("layout") == snowflake.NameJS:
	case !s.Given("provider"):
		s.Provider += "?layout=" + snowflake.NameJS
	default:
		return fmt.Errorf("%s is %s, and the leases of %s have another layout: add ?layout=%s to its URL",
			s.Cite("layout"), s.Layout, s.Cite("provider"), snowflake.NameJS)
	}
	return nil
}

// settleLayout makes layout and bit_ts of a service agree, one of which it may
// have inherited.
func (s *Service) settleLayout(entry value) error {
	switch {
	case entry.sets("layout") && s.Layout == LayoutJS && entry.sets("bit_ts"):
		return fmt.Errorf("layout %s and bit_ts: set one of them", s.Layout)
	case entry.sets("bit_ts"):
		s.Layout = LayoutDefault
	case entry.sets("layout"):
		if s.BitTS = snowflake.DefaultBitTS; s.Layout == LayoutJS {
			s.becomeJS(entry.sets("max_throughput_per_ms"))
		}
	}
	return nil
}

// settleEpoch makes timestamps start with the epoch of the service's leases, before there is one.
func (s *Service) settleEpoch(entry value, terms Terms) error {
	if !entry.sets("epoch") {
		return nil
	}
	if entry.sets("default_epoch") && !s.DefaultEpoch.Equal(terms.Epoch) {
		return fmt.Errorf("epoch %s and default_epoch %s: set one of them", terms.Epoch.Format(time.RFC3339), s.DefaultEpoch.Format(time.RFC3339))
	}
	s.DefaultEpoch = terms.Epoch
	return nil
}

// sets reports whether an entry of services has a key of the name.
func (v value) sets(name string) bool {
	return slices.ContainsFunc(v.members, func(m value) bool { return m.name == name })
}

// becomeJS gives what layout js means. One lease is enough by default: a lease
// has 16 IDs per millisecond, and there are 64 machine IDs for all.
func (s *Service) becomeJS(hasThroughput bool) {
	js := snowflake.JSLayout()
	s.BitTS = js.BitTS
	if !hasThroughput {
		s.MaxThroughputPerMS = int(js.Throughput())
	}
}
