package config

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kazahana/kazahana/internal/address"
)

// key is one setting: its name in every source, its default, and how it is read.
type key struct {
	name string
	// def is the default as text; "" if there is none, or if it depends on the
	// process (Load fills those in).
	def        string
	perService bool // a service in services may override it
	set        func(into target, v value) error
}

// target is the struct that a setting is written to. One of its fields is set.
type target struct {
	serve   *Serve
	service *Service
	now     time.Time // zero while defaults are set
	server  *LeaseServer
	terms   *Terms

	sequence *Sequence
}

// keys is the list of all keys, in the order of the packaged sample. It is
// filled by init because the setter of services looks keys up in it.
var keys []key

func init() {
	keys = slices.Concat(socketKeys(), leaseKeys(), placementKeys(), serviceKeys(), clockKeys(), operationKeys())
}

func socketKeys() []key {
	return []key{
		{name: "config", set: ignored},
		{name: "socket", set: one(func(t target) *string { return &t.serve.Socket }, address.Parse)},
		{name: "socket_mode", def: "0660", set: one(func(t target) *fs.FileMode { return &t.serve.SocketMode }, parseMode)},
		{name: "socket_group", set: one(func(t target) *string { return &t.serve.SocketGroup }, orNone(parseText))},
		{name: "allow_uids", set: many(func(t target) *[]uint32 { return &t.serve.AllowUIDs }, parseNumericID)},
		{name: "allow_gids", set: many(func(t target) *[]uint32 { return &t.serve.AllowGIDs }, parseNumericID)},
		{name: "max_connections", def: "16384",
			set: one(func(t target) *int { return &t.serve.MaxConnections }, wholeNumber(1, 1<<20))},
		{name: "max_in_flight", def: "8192",
			set: one(func(t target) *int { return &t.serve.MaxInFlight }, wholeNumber(1, 1<<20))},
		{name: "memory_limit", def: "0",
			set: one(func(t target) *int64 { return &t.serve.MemoryLimit }, byteSize(leastMemory))},
		{name: "max_connections_per_uid", def: "0",
			set: one(func(t target) *int { return &t.serve.MaxConnectionsPerUID }, wholeNumber(0, 1<<20))},
		{name: "max_in_flight_per_uid", def: "0",
			set: one(func(t target) *int { return &t.serve.MaxInFlightPerUID }, wholeNumber(0, 1<<20))},
		{name: "memory_per_uid", def: "0",
			set: one(func(t target) *int64 { return &t.serve.MemoryPerUID }, byteSize(leastUserMemory))},
		{name: "event_loop", def: "true",
			set: one(func(t target) *bool { return &t.serve.EventLoop }, parseSwitch)},
		{name: "drain_timeout", def: "5s",
			set: one(func(t target) *time.Duration { return &t.serve.DrainTimeout }, duration(0))},
	}
}

const (
	// leastMemory is less than any daemon needs.
	leastMemory = 16 << 20
	// leastUserMemory has room for the largest message while it is read.
	leastUserMemory = 2 << 20
)

func leaseKeys() []key {
	return []key{
		{name: "state_dir", set: one(func(t target) *string { return &t.serve.StateDir }, orNone(parseText))},
		{name: "live_dir", set: one(func(t target) *string { return &t.serve.LiveDir }, orNone(parseText))},
		{name: "provider", set: one(func(t target) *string { return &t.serve.Provider }, parseProvider)},
		{name: "provider_timeout", def: "3s",
			set: one(func(t target) *time.Duration { return &t.serve.ProviderTimeout }, duration(time.Millisecond))},
		{name: "verify_interval", def: "10s",
			set: one(func(t target) *time.Duration { return &t.serve.VerifyInterval }, duration(time.Millisecond))},
		{name: "meta", set: setMeta},
		{name: "service", def: "default",
			set: one(func(t target) *string { return &t.serve.DefaultService }, parseServiceName)},
		{name: "services", set: setServices},
		{name: "store", set: one(func(t target) *string { return &t.serve.Store }, parseStore)},
		{name: "sequences", set: setSequences(func(t target) *[]Sequence { return &t.serve.Sequences })},
	}
}

// maxPlacementTTL limits the time for which the actors of a dead host are out of
// reach.
const maxPlacementTTL = 10 * time.Minute

func placementKeys() []key {
	return []key{
		{name: "placement_authority", set: one(func(t target) *string { return &t.serve.PlacementAuthority }, orNone(parseAuthority))},
		{name: "placement_ttl", def: "10s",
			set: one(func(t target) *time.Duration { return &t.serve.PlacementTTL }, atMost(maxPlacementTTL, duration(time.Second)))},
		{name: "placement_idle_ttl", def: "0s",
			set: one(func(t target) *time.Duration { return &t.serve.PlacementIdleTTL }, duration(0))},
		{name: "topology_interval", def: "1s",
			set: one(func(t target) *time.Duration { return &t.serve.TopologyInterval }, duration(50*time.Millisecond))},
	}
}

// serviceKeys are the keys that a service may override.
func serviceKeys() []key {
	own := []key{
		{name: "max_throughput_per_ms", def: "256",
			set: one(func(t target) *int { return &t.service.MaxThroughputPerMS }, wholeNumber(1, 1<<20))},
		{name: "fallback", def: string(FallbackCachedRandom),
			set: one(func(t target) *Fallback { return &t.service.Fallback },
				oneOf(FallbackCachedRandom, FallbackCached, FallbackNone))},
		{name: "sequence_start", def: string(SequenceSpread),
			set: one(func(t target) *SequenceStart { return &t.service.SequenceStart }, oneOf(SequenceSpread, SequenceZero))},
		{name: "startup_wait", def: "500ms",
			set: one(func(t target) *time.Duration { return &t.service.StartupWait }, duration(0))},
		{name: "max_backward", def: "5s",
			set: one(func(t target) *time.Duration { return &t.service.MaxBackward }, parseBackward)},
		{name: "acquire_retry_interval", def: "1s",
			set: one(func(t target) *time.Duration { return &t.service.AcquireRetryInterval }, duration(time.Millisecond))},
		{name: "acquire_retry_max_interval", def: "60s",
			set: one(func(t target) *time.Duration { return &t.service.AcquireRetryMaxInterval }, duration(time.Millisecond))},
		{name: "layout", def: string(LayoutDefault),
			set: one(func(t target) *Layout { return &t.service.Layout }, oneOf(LayoutDefault, LayoutJS))},
		{name: "bit_ts", def: "41",
			set: one(func(t target) *int { return &t.service.BitTS }, wholeNumber(minBitTS, maxBitTS))},
		{name: "default_epoch", def: "2026-01-01T00:00:00Z", set: setEpoch},
		{name: "external_secret_file",
			set: one(func(t target) *string { return &t.service.ExternalSecretFile }, orNone(parseText))},
	}
	for i := range own {
		own[i].perService = true
	}
	return own
}

func clockKeys() []key {
	return []key{
		{name: "max_forward", def: "1s",
			set: one(func(t target) *time.Duration { return &t.serve.MaxForward }, duration(time.Millisecond))},
		{name: "forward_hold", def: "60s",
			set: one(func(t target) *time.Duration { return &t.serve.ForwardHold }, duration(0))},
	}
}

func operationKeys() []key {
	return []key{
		{name: "admin_listen", set: one(func(t target) *string { return &t.serve.AdminListen }, orNone(parseAdminListen))},
		{name: "admin_pprof", def: "false",
			set: one(func(t target) *bool { return &t.serve.AdminPprof }, parseSwitch)},
		{name: "log_level", def: string(LogInfo),
			set: one(func(t target) *LogLevel { return &t.serve.LogLevel }, oneOf(LogDebug, LogInfo, LogWarn, LogError))},
		{name: "log_format", def: string(LogAuto),
			set: one(func(t target) *LogFormat { return &t.serve.LogFormat }, oneOf(LogAuto, LogJSON, LogConsole))},
	}
}

// With fewer bits the default epoch's time would run out within weeks; with more
// there would be machine IDs for a few hosts only.
const minBitTS, maxBitTS = 32, 52

func findKey(name string) (key, bool) { return findIn(keys, name) }

func findIn(keys []key, name string) (key, bool) {
	for _, k := range keys {
		if k.name == name {
			return k, true
		}
	}
	return key{}, false
}

func anyKey(key) bool { return true }

func keyNames(wanted func(key) bool) []string { return namesIn(keys, wanted) }

func namesIn(keys []key, wanted func(key) bool) []string {
	var names []string
	for _, k := range keys {
		if wanted(k) {
			names = append(names, k.name)
		}
	}
	return names
}

// one returns the setter of a key with a single value.
func one[T any](field func(target) *T, parse func(string) (T, error)) func(target, value) error {
	return func(into target, v value) error {
		text, err := v.scalar()
		if err != nil {
			return err
		}
		parsed, err := parse(text)
		if err != nil {
			return v.refuse(text, err)
		}
		*field(into) = parsed
		return nil
	}
}

// many returns the setter of a key with a list.
func many[T any](field func(target) *[]T, parse func(string) (T, error)) func(target, value) error {
	return func(into target, v value) error {
		elements, err := v.elements()
		if err != nil {
			return err
		}
		var parsed []T
		for _, e := range elements {
			p, err := parse(e.text)
			if err != nil {
				return e.refuse(e.text, err)
			}
			parsed = append(parsed, p)
		}
		*field(into) = parsed
		return nil
	}
}

// ignored is the setter of config: the file has been read before keys are set.
func ignored(target, value) error { return nil }

func setEpoch(into target, v value) error {
	parse := func(text string) (time.Time, error) { return parseEpoch(text, into.now) }
	return one(func(t target) *time.Time { return &t.service.DefaultEpoch }, parse)(into, v)
}

// Limits on meta: a provider stores it with every lease.
const maxMeta, maxMetaKey, maxMetaValue = 32, 64, 256

// setMeta accepts a map, or key=value pairs written as a list.
func setMeta(into target, v value) error {
	pairs, err := metaPairs(v)
	if err != nil {
		return err
	}
	meta := map[string]string{}
	for _, p := range pairs {
		text, err := p.scalar()
		switch {
		case err != nil:
			return err
		case p.name == "" || len(p.name) > maxMetaKey || strings.ContainsAny(p.name, "=,") || !utf8.ValidString(p.name):
			return v.errorf("%s is not a name: write 1 to %d characters without = and comma", quote(p.name), maxMetaKey)
		case len(text) > maxMetaValue || !utf8.ValidString(text):
			return p.errorf("%s is too long: the most is %d bytes", quote(text), maxMetaValue)
		}
		if _, twice := meta[p.name]; twice {
			return v.errorf("%s is given twice", quoteName(p.name))
		}
		meta[p.name] = text
	}
	for _, reserved := range []string{"host", "pid", "version", "service"} {
		if _, taken := meta[reserved]; taken {
			return v.errorf("%s is what the daemon itself reports: choose another name", reserved)
		}
	}
	if len(meta) > maxMeta {
		return v.errorf("it has %d entries: the most is %d", len(meta), maxMeta)
	}
	into.serve.Meta = meta
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

// setServices checks every override. resolveServices applies them, when the top
// level is known.
func setServices(into target, v value) error {
	members, err := v.entries("service names")
	if err != nil {
		return err
	}
	overrides := map[string][]value{}
	for _, service := range members {
		if _, err := parseServiceName(service.name); err != nil {
			return fmt.Errorf("services in %s: %s %w", service.where, quote(service.name), err)
		}
		if service.kind != mapping {
			return service.errorf("it is a %v, and must be a map of keys; {} changes nothing", service.kind)
		}
		for _, override := range service.members {
			var scratch Service
			if err := setPerService(target{service: &scratch, now: into.now}, override); err != nil {
				return err
			}
		}
		overrides[service.name] = service.members
	}
	into.serve.overrides = overrides
	return nil
}

// setPerService sets one override of a service.
func setPerService(into target, v value) error {
	k, known := findKey(v.name)
	switch {
	case known && k.perService:
		return k.set(into, v)
	case known:
		return fmt.Errorf("%s in %s: %s cannot differ between services: set it at the top level", v.key, v.where, v.name)
	}
	return unknownKey(v, func(k key) bool { return k.perService })
}

// unknownKey suggests the key that was probably meant.
func unknownKey(v value, wanted func(key) bool) error {
	hint := "kazahanad serve --help lists the keys"
	if near := nearest(v.name, keyNames(wanted)); near != "" {
		hint = "did you mean " + near + "?"
	}
	return fmt.Errorf("unknown key %s in %s: %s", quoteName(v.key), v.where, hint)
}
