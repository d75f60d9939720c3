package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// check refuses settings that contradict each other.
func (s *Serve) check(now time.Time) error {
	if err := s.checkTerms(now); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		if err := s.checkService(name, s.services[name], now); err != nil {
			return err
		}
	}
	if scheme, single := s.singleServiceProvider(); single && len(s.services) > 1 {
		return fmt.Errorf("%s is %s, which cannot keep services apart, but there are %d (%s): use another provider, or one daemon for each",
			s.Cite("provider"), scheme, len(s.services), strings.Join(slices.Sorted(maps.Keys(s.services)), ", "))
	}
	if err := s.checkGroup(s.origins); err != nil {
		return err
	}
	if s.AdminPprof && s.AdminListen == "" {
		return fmt.Errorf("%s needs admin_listen: set it, for example to 127.0.0.1:9746", s.Cite("admin_pprof"))
	}
	if s.PlacementAuthority != "" && s.Store == none {
		return fmt.Errorf("%s needs a store, and %s is none: placement lives on its locks", s.Cite("placement_authority"), s.Cite("store"))
	}
	if s.TopologyInterval > s.PlacementTTL/2 {
		return fmt.Errorf("%s %s is longer than half of %s %s", s.Cite("topology_interval"), s.TopologyInterval,
			s.Cite("placement_ttl"), s.PlacementTTL)
	}
	return s.checkListeners()
}

func (s *Serve) checkListeners() error {
	taken := map[string]string{"unix:" + s.Socket: "socket"}
	for _, l := range []struct{ key, at string }{
		{"admin_listen", s.AdminListen}, {"memcached_listen", s.MemcachedListen}, {"http_listen", s.HTTPListen},
	} {
		if l.at == "" {
			continue
		}
		if other := taken[l.at]; other != "" {
			return fmt.Errorf("%s and %s are the same address", s.Cite(l.key), s.Cite(other))
		}
		if !strings.HasSuffix(l.at, ":0") { // any free port
			taken[l.at] = l.key
		}
		if l.key != "admin_listen" && !s.Insecure && !onLoopback(l.at) {
			return fmt.Errorf("%s %s can be reached from other hosts, and asks them for no credential: listen on 127.0.0.1 or unix:PATH, or say --insecure if the network itself keeps others out",
				s.Cite(l.key), l.at)
		}
	}
	return nil
}

func (a *Access) checkGroup(from origins) error {
	if a.SocketGroup != "" && a.SocketMode&0o020 == 0 {
		return fmt.Errorf("%s is of no use with %s %04o, which does not let a group connect: add 0060, or leave out socket_group",
			from.Cite("socket_group"), from.Cite("socket_mode"), a.SocketMode)
	}
	return nil
}

func (s *Serve) checkService(name string, service Service, now time.Time) error {
	if service.AcquireRetryInterval > service.AcquireRetryMaxInterval {
		return fmt.Errorf("%s %s is longer than %s %s",
			s.citeIn(name, "acquire_retry_interval"), service.AcquireRetryInterval,
			s.citeIn(name, "acquire_retry_max_interval"), service.AcquireRetryMaxInterval)
	}
	if scheme(s.Provider) == "none:" && service.Fallback != FallbackCachedRandom {
		return fmt.Errorf("%s none: never gives a lease, and %s %s refuses IDs that no lease ever stood behind: every request for service %s would fail",
			s.Cite("provider"), s.citeIn(name, "fallback"), service.Fallback, name)
	}
	epoch := s.citeIn(name, "default_epoch")
	if s.Overrides[name].sets("epoch") {
		epoch = s.citeIn(name, "epoch")
	}
	if err := checkEpoch(epoch, service.DefaultEpoch, now); err != nil {
		return err
	}
	// Too few bits must fail here and not at the first request.
	end := time.UnixMilli(service.DefaultEpoch.UnixMilli() + 1<<service.BitTS).UTC()
	if !now.IsZero() && !end.After(now) {
		return fmt.Errorf("%s %d and %s %s leave no time: timestamps ran out on %s",
			s.citeIn(name, "bit_ts"), service.BitTS, epoch,
			service.DefaultEpoch.Format(time.RFC3339), end.Format(time.DateOnly))
	}
	return nil
}

// checkTerms refuses terms of services that are of no effect here.
func (s *Serve) checkTerms(now time.Time) error {
	why := whyNoTerms(s.Provider)
	for _, name := range slices.Sorted(maps.Keys(s.Overrides)) {
		for _, v := range s.Overrides[name].members {
			switch {
			case !slices.Contains(termsKeys(), v.name):
			case why != "" && !slices.Contains(serviceKeys(), v.name): // bit_ts and layout also count before the first lease
				return fmt.Errorf("%s cannot be set with %s %s: %s", s.citeIn(name, v.name), s.Cite("provider"), scheme(s.Provider), why)
			case v.name == "epoch":
				if err := checkEpoch(s.citeIn(name, v.name), s.terms[name].Epoch, now); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// coordinating are the providers that grant to several services.
const coordinating = "sqlite:, redis:, etcd:, postgres:, kubernetes: or memory:"

// whyNoTerms says why a provider takes no terms of single services, and where they have to be set
// instead; "": it takes some.
func whyNoTerms(provider string) string {
	switch scheme(provider) {
	case "http:", "https:", "http+unix:":
		return "the lease server decides on the terms: set them in services of its own configuration"
	case "none:":
		return "it grants no leases; terms need one of " + coordinating
	case "static:", "ip:":
		return "it grants one machine ID to one service: write the terms into its URL, or take one of " + coordinating
	}
	return ""
}

// TakesTerms reports whether the provider grants on the terms of the configuration, such as ids.
func TakesTerms(provider string) bool { return whyNoTerms(provider) == "" }

// checkEpoch refuses an epoch after now. A zero now skips that.
func checkEpoch(cited string, epoch, now time.Time) error {
	if now.IsZero() || !epoch.After(now) {
		return nil
	}
	return fmt.Errorf("%s %s is in the future: this host's clock says %s", cited, epoch.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
}

// scheme is the part of a provider URL that names its kind.
func scheme(provider string) string { return strings.ToLower(schemeStart.FindString(provider)) }

// singleServiceProvider reports whether the provider does not coordinate its grants,
// so that two services would use one slot.
func (s *Serve) singleServiceProvider() (string, bool) {
	scheme := scheme(s.Provider)
	return scheme, scheme == "static:" || scheme == "ip:"
}
