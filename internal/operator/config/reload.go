package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
)

// live are the keys that a running daemon takes over from its configuration. What
// is not here needs a restart: where the daemon listens and keeps its state, which
// provider and store it has, and all that its IDs are laid out by.
var live = map[string]bool{
	"allow_uids": true, "allow_gids": true, "max_connections": true, "max_in_flight": true, "drain_timeout": true,
	"log_level":             true,
	"max_throughput_per_ms": true, "fallback": true, "sequence_start": true, "max_backward": true,
	"acquire_retry_interval": true, "acquire_retry_max_interval": true, "external_secret_file": true,
}

// leaseServerLive are those of the lease server. Its credentials' files are read
// again by themselves.
var leaseServerLive = map[string]bool{"log_level": true}

// Reload is what a configuration that was read again means to a running process.
type Reload struct {
	Changed []string // keys that differ and are taken over
	Restart []string // keys that differ, and count only after a restart
}

// Reload compares the settings that are in force with next, and returns those to
// be in force from now on: next's where a running daemon can take them over, and
// its own elsewhere. The error says that these do not go together.
func (s *Serve) Reload(next *Serve, now time.Time) (*Serve, Reload, error) {
	var r Reload
	merged := *s
	r.takeOver(live, "", of(&merged, next), nil)
	r.takeOver(live, "", of(&merged.base, &next.base), nil)
	inherited := of(&s.base, &next.base)
	merged.overrides = next.overrides // to cite them
	merged.origin = maps.Clone(next.origin)
	merged.services = map[string]Service{}
	for name, service := range s.services {
		after, there := next.services[name]
		if !there && name == s.DefaultService {
			after, there = next.base, true
		}
		if !there {
			r.Restart = append(r.Restart, "services."+name)
			merged.services[name] = service
			continue
		}
		r.takeOver(live, "services."+name+".", of(&service, &after), &inherited)
		merged.services[name] = service
	}
	for name := range next.services {
		if _, there := s.services[name]; !there && name != next.DefaultService {
			r.Restart = append(r.Restart, "services."+name)
		}
	}
	r.tidy()
	if err := merged.check(now); err != nil {
		return nil, r, fmt.Errorf("without a restart the settings would not go together: %w", err)
	}
	return &merged, r, nil
}

// Reload is as that of Serve.
func (s *LeaseServer) Reload(next *LeaseServer) (*LeaseServer, Reload) {
	var r Reload
	merged := *s
	r.takeOver(leaseServerLive, "", of(&merged, next), nil)
	if !reflect.DeepEqual(s.services, next.services) {
		r.Restart = append(r.Restart, "services")
	}
	r.tidy()
	return &merged, r
}

// pair is two structs of one type.
type pair struct{ before, after reflect.Value }

func of[T any](before, after *T) pair {
	return pair{reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()}
}

func (p pair) same(i int) bool {
	return reflect.DeepEqual(p.before.Field(i).Interface(), p.after.Field(i).Interface())
}

// takeOver compares settings field by field, and makes before what after says where
// the key is live. A change that both sides merely inherit is told of where it
// comes from. Config is where the settings were read, and no setting.
func (r *Reload) takeOver(live map[string]bool, prefix string, p pair, inherited *pair) {
	for i := range p.before.NumField() {
		field := p.before.Type().Field(i)
		if !field.IsExported() || field.Name == "Config" || p.same(i) {
			continue
		}
		key, told := keyOf(field.Name), &r.Restart
		quiet := inherited != nil && (pair{p.before, inherited.before}).same(i) && (pair{p.after, inherited.after}).same(i)
		if live[key] {
			told = &r.Changed
		}
		if !quiet {
			*told = append(*told, prefix+key)
		}
		if live[key] {
			p.before.Field(i).Set(p.after.Field(i))
		}
	}
}

func (r *Reload) tidy() {
	for _, keys := range []*[]string{&r.Changed, &r.Restart} {
		slices.Sort(*keys)
		*keys = slices.Compact(*keys)
	}
}

// oddFields are those whose keys are not spelled like them.
var oddFields = map[string]string{"DefaultService": "service", "SocketInTmp": "socket", "TLSCert": "tls_cert", "TLSKey": "tls_key"}

// keyOf is the key that a field holds the value of: MaxInFlight is max_in_flight.
func keyOf(field string) string {
	if key, odd := oddFields[field]; odd {
		return key
	}
	var key strings.Builder
	lower := false
	for _, c := range field {
		if unicode.IsUpper(c) && lower {
			key.WriteByte('_')
		}
		lower = unicode.IsLower(c)
		key.WriteRune(unicode.ToLower(c))
	}
	return key.String()
}

// Cite names a key with the place where it was set: "fallback (FILE line 3)".
func (s *Serve) Cite(key string) string { return s.cite(key) }

// Given reports whether any source sets the key.
func (s *Serve) Given(key string) bool { return s.given(key) }
