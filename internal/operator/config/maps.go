package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kazahana/kazahana/internal/keyname"
)

// setEntry sets the fields of an entry of a map from its keys. A key that several structs
// have is set in each.
func setEntry(command string, members []value, structs ...any) error {
	var flags []*flag
	for _, one := range structs {
		flags = append(flags, flagsOf(one)...)
	}
	for _, v := range members {
		if flagNamed(flags, v.name) == nil {
			return unknownKey(command, keysOf(flags), v)
		}
		for _, f := range flags {
			if f.key() != v.name {
				continue
			}
			if err := f.decode(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// Limits on meta: a provider stores it with every lease.
const maxMeta, maxMetaKey, maxMetaValue = 32, 64, 256

// Meta is a map of texts: a YAML map, or KEY=VALUE pairs.
type Meta map[string]string

// decode implements ownDecoder. A flag that is given again adds to the map.
func (m *Meta) decode(v value) error {
	pairs, err := metaPairs(v)
	if err != nil {
		return err
	}
	if *m == nil || len(pairs) == 0 {
		*m = Meta{}
	}
	for _, p := range pairs {
		text, err := p.scalar()
		switch {
		case err != nil:
			return err
		case p.name == "" || len(p.name) > maxMetaKey || strings.ContainsAny(p.name, "=,") || !utf8.ValidString(p.name):
			return v.errorf("%s is not a name: write 1 to %d characters without = and comma", quote(p.name), maxMetaKey)
		case slices.Contains([]string{"host", "pid", "version", "service"}, p.name):
			return v.errorf("%s is what the daemon itself reports: choose another name", p.name)
		case len(text) > maxMetaValue || !utf8.ValidString(text):
			return p.errorf("%s is too long: the most is %d bytes", quote(text), maxMetaValue)
		}
		if _, twice := (*m)[p.name]; twice {
			return v.errorf("%s is given twice", quoteName(p.name))
		}
		(*m)[p.name] = text
	}
	if len(*m) > maxMeta {
		return v.errorf("it has %d entries: the most is %d", len(*m), maxMeta)
	}
	return nil
}

func metaPairs(v value) ([]value, error) {
	if v.kind == scalar && strings.HasPrefix(v.text, "{") {
		flow, err := v.parseFlow(v.text)
		if err != nil {
			return nil, err
		}
		v = flow
	}
	switch v.kind {
	case mapping:
		return v.members, nil
	case list:
		return nil, v.errorf("it is a list, and must be a map")
	}
	elements, err := v.elements()
	if err != nil {
		return nil, err
	}
	for i, e := range elements {
		name, text, found := strings.Cut(e.text, "=")
		if !found {
			return nil, v.refuse(e.text, errors.New("has no value: write KEY=VALUE"))
		}
		elements[i].name, elements[i].text = strings.TrimSpace(name), strings.TrimSpace(text)
		elements[i].key = v.key + "." + elements[i].name
	}
	return elements, nil
}

var serveKeys = sync.OnceValue(func() []string { return keysOf(flagsOf(&Serve{})) })

var serviceKeys = sync.OnceValue(func() []string { return keysOf(flagsOf(&Service{})) })

// Overrides are what single services of a daemon set, by the service's name: each is a mapping.
type Overrides map[string]value

// decode implements ownDecoder. It judges each override; resolveServices applies
// them, when the top level is known.
func (o *Overrides) decode(v value) error {
	*o = Overrides{}
	return v.eachEntry("service names", func(entry value) error {
		if _, err := parseServiceName(entry.name); err != nil {
			return v.refuse(entry.name, err)
		}
		return nil
	}, func(entry value) error {
		(*o)[entry.name] = entry
		for _, m := range entry.members {
			if !slices.Contains(serviceKeys(), m.name) && slices.Contains(serveKeys(), m.name) {
				return m.errorf("%s cannot differ between services: set it at the top level", m.name)
			}
		}
		_, err := newTerms("serve", entry, &Service{})
		return err
	})
}

// withTermsOnly is the value of services without the keys that are no terms.
func (v value) withTermsOnly() (value, error) {
	entries, err := v.entries("service names")
	if err != nil {
		return v, err
	}
	v.kind, v.text, v.members = mapping, "", slices.Clone(entries)
	for i, entry := range v.members {
		v.members[i].members = slices.DeleteFunc(slices.Clone(entry.members), func(v value) bool { return !slices.Contains(termsKeys(), v.name) })
	}
	return v, nil
}

// resolveServices applies the overrides to the top level.
func (s *Serve) resolveServices() error {
	s.services, s.terms = map[string]Service{s.DefaultService: s.Service}, ServiceTerms{}
	for _, name := range slices.Sorted(maps.Keys(s.Overrides)) {
		service := s.Service
		entry := s.Overrides[name]
		terms, err := newTerms("serve", entry, &service)
		if err != nil {
			return err
		}
		if err := service.settleLayout(entry); err != nil {
			return fmt.Errorf("%s: %w", entry.cite(), err)
		}
		if err := service.settleEpoch(entry, terms); err != nil {
			return fmt.Errorf("%s: %w", entry.cite(), err)
		}
		s.services[name] = service
		if len(terms.Params) > 0 && TakesTerms(s.Provider) {
			s.terms[name] = terms
		}
	}
	return nil
}

// citeIn names a key of one service.
func (s *Serve) citeIn(service, key string) string {
	for _, v := range s.Overrides[service].members {
		if v.name == key {
			return v.cite()
		}
	}
	return s.Cite(key)
}

// cite names an entry of services, or a key of one, with its place.
func (v value) cite() string { return v.key + " (" + cmp.Or(v.where, "--services") + ")" }

// Terms are the terms of one service's leases: keys of an entry of services, of a daemon and of
// the lease server alike. A key that is not set there has the provider URL's value.
type Terms struct {
	// Params are the set terms, as parameters of a provider's URL.
	Params url.Values

	cited string // the entry with its place

	Epoch      time.Time     `name:"epoch" type:"epoch"`
	Layout     Layout        `name:"layout" type:"word" enum:"default,js"`
	BitTS      int           `name:"bit-ts" type:"number" min:"32" max:"52"`
	BitID      int           `name:"bit-id" type:"number" min:"1" max:"30"`
	BitSeq     int           `name:"bit-seq" type:"number" min:"0" max:"30"`
	Term       time.Duration `name:"term" type:"milliseconds" min:"1ms"`
	Quarantine time.Duration `name:"quarantine" type:"milliseconds"`
	Pool       string        `name:"pool" type:"service"`
	MaxLeases  int           `name:"max-leases-per-acquire" type:"number" min:"1" max:"1048576"` // 0: not set
	IDs        string        `name:"ids" type:"range"`                                           // LOW-HIGH
}

var termsKeys = sync.OnceValue(func() []string { return keysOf(flagsOf(&Terms{})) })

// newTerms reads the terms of an entry of services. beside are structs with its other keys.
func newTerms(command string, entry value, beside ...any) (Terms, error) {
	terms := Terms{Params: url.Values{}, cited: entry.cite()}
	for _, v := range entry.members {
		if slices.Contains(termsKeys(), v.name) {
			terms.Params.Set(v.name, v.text)
		}
	}
	err := setEntry(command, entry.members, append(beside, &terms)...)
	return terms, err
}

// tenantService is the name of an entry of services: SERVICE, or TENANT/SERVICE.
var tenantService = regexp.MustCompile(`^([A-Za-z0-9._@-]{1,64}/)?[A-Za-z0-9._-]{1,64}$`)

// ServiceTerms are the terms of services, by name.
type ServiceTerms map[string]Terms

func (t ServiceTerms) params() map[string]url.Values {
	all := map[string]url.Values{}
	for name, terms := range t {
		all[name] = terms.Params
	}
	return all
}

// decode implements ownDecoder.
func (t *ServiceTerms) decode(v value) error {
	*t = ServiceTerms{}
	return v.eachEntry("service names", func(entry value) error {
		if !tenantService.MatchString(entry.name) || strings.HasPrefix(entry.name, "default/") {
			return v.errorf("%s is not a service name: write SERVICE, or TENANT/SERVICE for another tenant than default", quote(entry.name))
		}
		return nil
	}, func(entry value) error {
		terms, err := newTerms("lease-server", entry)
		(*t)[entry.name] = terms
		return err
	})
}

// Sequence says how the keys with a prefix count. Unset fields are zero: package
// sequence knows the defaults, and which settings go together.
type Sequence struct {
	Prefix   string
	Step     int64         `name:"step" type:"number" min:"1"`
	Start    *int64        `name:"start" type:"number"`
	MaxValue int64         `name:"max-value" type:"number"`
	OnMax    string        `name:"on-max" type:"word" enum:"reset,error"`
	TTL      time.Duration `name:"ttl" type:"milliseconds"`
	Block    int           `name:"block" type:"number" max:"65536"` // values of one call
}

const (
	maxSequences      = 1000
	maxSequencePrefix = 512 // bytes, as of a key
)

// Sequences are the entries of sequences, the longest prefix first: the first match counts.
type Sequences []Sequence

// decode implements ownDecoder.
func (s *Sequences) decode(v value) error {
	*s = nil
	err := v.eachEntry("prefixes of keys", func(entry value) error {
		if err := keyname.Check(entry.name, maxSequencePrefix); entry.name != "" && err != nil {
			return entry.errorf("%s is not the beginning of a key: it %v", quote(entry.name), err)
		}
		return nil
	}, func(entry value) error {
		one := Sequence{Prefix: entry.name}
		err := setEntry("serve", entry.members, &one)
		*s = append(*s, one)
		return err
	})
	if err == nil && len(*s) > maxSequences {
		err = v.errorf("it has %d entries: the most is %d", len(*s), maxSequences)
	}
	slices.SortStableFunc(*s, func(a, b Sequence) int { return len(b.Prefix) - len(a.Prefix) })
	return err
}
