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

// live are the keys that a running daemon can change. All others need a restart:
// sockets, directories, the provider, the store, and the layout of IDs.
var live = map[string]bool{
	"allow_uids": true, "allow_gids": true, "max_connections": true, "max_connections_per_user": true, "max_in_flight": true, "max_waiting": true, "drain_timeout": true,
	"log_level":             true,
	"max_throughput_per_ms": true, "fallback": true, "sequence_start": true, "max_backward": true,
	"acquire_retry_interval": true, "acquire_retry_max_interval": true, "external_secret_file": true,
}

// leaseServerLive are those of the lease server, which also reads the files of its
// credentials again.
var leaseServerLive = map[string]bool{"log_level": true}

// Reload is the effect of a reload on a running process.
type Reload struct {
	Changed []string // keys that changed and apply now
	Restart []string // keys that changed and apply after a restart
}

// Reload compares the settings with next, and returns the settings that apply from
// now on: next's for the keys that a running daemon can change, its own for the
// others. It returns an error if the combination is contradictory.
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

// Reload is Serve.Reload for the lease server.
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

func (p pair) same(f reflect.StructField) bool {
	return reflect.DeepEqual(p.before.FieldByIndex(f.Index).Interface(), p.after.FieldByIndex(f.Index).Interface())
}

// takeOver compares settings field by field, and copies after to before if the key
// is live. A change that a service inherits is reported for the top level only.
// Config names the file and is not a setting.
func (r *Reload) takeOver(live map[string]bool, prefix string, p pair, inherited *pair) {
	for _, field := range reflect.VisibleFields(p.before.Type()) {
		if !field.IsExported() || field.Anonymous || field.Name == "Config" || p.same(field) {
			continue
		}
		key, told := keyOf(field.Name), &r.Restart
		quiet := inherited != nil && (pair{p.before, inherited.before}).same(field) && (pair{p.after, inherited.after}).same(field)
		if live[key] {
			told = &r.Changed
			p.before.FieldByIndex(field.Index).Set(p.after.FieldByIndex(field.Index))
		}
		if !quiet {
			*told = append(*told, prefix+key)
		}
	}
}

func (r *Reload) tidy() {
	for _, keys := range []*[]string{&r.Changed, &r.Restart} {
		slices.Sort(*keys)
		*keys = slices.Compact(*keys)
	}
}

// oddFields are fields whose names do not follow from their keys.
var oddFields = map[string]string{"DefaultService": "service", "SocketInTmp": "socket", "HTTPListen": "http_listen", "UUIDVersion": "uuid_version", "TLSCert": "tls_cert", "TLSKey": "tls_key", "MaxLeases": "max_leases_per_acquire"}

// keyOf returns the key of a field: MaxInFlight is max_in_flight.
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
