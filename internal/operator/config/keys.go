package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kazahana/kazahana/internal/address"
	"github.com/kazahana/kazahana/internal/didyoumean"
)

// key is one setting: its name in every source, its default, and how it is read.
type key struct {
	name string
	// def is the default as text; "" if there is none, or if it depends on the
	// process (Load fills those in).
	def        string
	perService bool // a service in services may override it
	set        setter
}

// setter reads a value and writes it to the settings.
type setter func(into target, v value) error

// target is the settings that a setter writes to.
type target struct {
	structs []any     // pointers; a value goes to the field that its key names
	now     time.Time // zero while defaults are set

	serve  *Serve // for the maps that no field of a name holds
	server *LeaseServer
}

// put sets the field of a key's name. A pointer's field is made.
func (t target) put(name string, parsed any) {
	for _, s := range t.structs {
		settings := reflect.ValueOf(s).Elem()
		for _, f := range reflect.VisibleFields(settings.Type()) {
			if f.IsExported() && !f.Anonymous && keyOf(f.Name) == name {
				field := settings.FieldByIndex(f.Index)
				if field.Kind() == reflect.Pointer {
					field.Set(reflect.New(field.Type().Elem()))
					field = field.Elem()
				}
				field.Set(reflect.ValueOf(parsed))
				return
			}
		}
	}
	panic("config: no field has the value of " + name)
}

// The lists of keys: of "serve" and of "lease-server", each in the order of the
// packaged sample, of an entry of the lease server's services, and of an entry of
// sequences. init fills them because setters look keys up in them.
var keys, leaseServerKeys, termsKeys, sequenceKeys []key

func init() {
	keys = slices.Concat(socketKeys(), doorKeys(), leaseKeys(), placementKeys(), serviceKeys(), clockKeys(), operationKeys())
	leaseServerKeys = slices.Concat(listenKeys(), storeKeys(), limitKeys())
	termsKeys = serviceTermsKeys()
	sequenceKeys = prefixKeys()
}

func socketKeys() []key {
	return []key{
		{name: "config", set: ignored},
		{name: "socket", set: one(address.Parse)},
		{name: "socket_mode", def: "0660", set: one(parseMode)},
		{name: "socket_group", set: one(orNone(parseText))},
		{name: "allow_uids", set: many(parseNumericID)},
		{name: "allow_gids", set: many(parseNumericID)},
		{name: "max_connections", def: "16384", set: one(wholeNumber(1, 1<<20))},
		{name: "max_connections_per_user", def: "0", set: one(wholeNumber(0, 1<<20))},
		{name: "max_in_flight", def: "8192", set: one(wholeNumber(1, 1<<20))},
		{name: "max_waiting", def: "1024", set: one(wholeNumber(1, 1<<20))},
		{name: "memory_limit", def: "0", set: one(byteSize(leastMemory))},
		{name: "event_loop", def: "true", set: one(parseSwitch)},
		{name: "drain_timeout", def: "5s", set: one(duration(0))},
	}
}

// doorKeys are further ways to ask for IDs.
func doorKeys() []key {
	return []key{
		{name: "memcached_listen", set: one(orNone(parseDoor("127.0.0.1:11212")))},
		{name: "http_listen", set: one(orNone(parseDoor("127.0.0.1:9747")))},
		{name: "insecure", def: "false", set: one(parseSwitch)},
	}
}

const (
	// leastMemory is less than any daemon needs.
	leastMemory = 16 << 20
	// leastDisk has room for the largest snapshots and some keys.
	leastDisk = 1 << 20
)

func leaseKeys() []key {
	return []key{
		{name: "state_dir", set: one(orNone(parseText))},
		{name: "live_dir", set: one(orNone(parseText))},
		{name: "provider", set: one(parseProvider)},
		{name: "provider_timeout", def: "3s", set: one(duration(time.Millisecond))},
		{name: "verify_interval", def: "10s", set: one(duration(time.Millisecond))},
		{name: "meta", set: setMeta},
		{name: "service", def: "default", set: one(parseServiceName)},
		{name: "services", set: setServices},
		{name: "uuid_version", def: "7", set: one(parseUUIDVersion)},
		{name: "store", set: one(parseStore)},
		{name: "max_keys", def: "1000000", set: one(wholeNumber(0, 1<<30))},
		{name: "max_disk", def: "1GiB", set: one(byteSize(leastDisk))},
		{name: "sequences", set: setSequences},
	}
}

// maxPlacementTTL limits the time for which the actors of a dead host are out of
// reach.
const maxPlacementTTL = 10 * time.Minute

func placementKeys() []key {
	return []key{
		{name: "placement_authority", set: one(orNone(parseAuthority))},
		{name: "placement_ttl", def: "10s", set: one(atMost(maxPlacementTTL, duration(time.Second)))},
		{name: "placement_idle_ttl", def: "0s", set: one(duration(0))},
		{name: "topology_interval", def: "1s", set: one(duration(50 * time.Millisecond))},
	}
}

// serviceKeys are the keys that a service may override.
func serviceKeys() []key {
	own := []key{
		{name: "max_throughput_per_ms", def: "256", set: one(wholeNumber(1, 1<<20))},
		{name: "fallback", def: string(FallbackCachedRandom), set: one(oneOf(FallbackCachedRandom, FallbackCached, FallbackNone))},
		{name: "sequence_start", def: string(SequenceSpread), set: one(oneOf(SequenceSpread, SequenceZero))},
		{name: "startup_wait", def: "500ms", set: one(duration(0))},
		{name: "max_backward", def: "5s", set: one(parseBackward)},
		{name: "acquire_retry_interval", def: "1s", set: one(duration(time.Millisecond))},
		{name: "acquire_retry_max_interval", def: "60s", set: one(duration(time.Millisecond))},
		{name: "layout", def: string(LayoutDefault), set: one(oneOf(LayoutDefault, LayoutJS))},
		{name: "bit_ts", def: "41", set: one(wholeNumber(minBitTS, maxBitTS))},
		{name: "default_epoch", def: "2026-01-01T00:00:00Z", set: setEpoch},
		{name: "external_secret_file", set: one(orNone(parseText))},
	}
	for i := range own {
		own[i].perService = true
	}
	return own
}

func clockKeys() []key {
	return []key{
		{name: "max_forward", def: "1s", set: one(duration(time.Millisecond))},
		{name: "forward_hold", def: "60s", set: one(duration(0))},
	}
}

func operationKeys() []key {
	return append([]key{
		{name: "admin_listen", set: one(orNone(parseAdminListen))},
		{name: "admin_pprof", def: "false", set: one(parseSwitch)},
	}, logKeys()...)
}

func logKeys() []key {
	return []key{
		{name: "log_level", def: string(LogInfo), set: one(oneOf(LogDebug, LogInfo, LogWarn, LogError))},
		{name: "log_format", def: string(LogAuto), set: one(oneOf(LogAuto, LogJSON, LogConsole))},
	}
}

func listenKeys() []key {
	return []key{
		{name: "config", set: ignored},
		{name: "listen", def: "127.0.0.1:7464", set: one(parseDoor("127.0.0.1:7464"))},
		{name: "socket_mode", def: "0660", set: one(parseMode)},
		{name: "socket_group", set: one(orNone(parseText))},
		{name: "tls_cert", set: one(orNone(parseText))},
		{name: "tls_key", set: one(orNone(parseText))},
		{name: "client_ca", set: one(orNone(parseText))},
		{name: "tokens_file", set: one(orNone(parseText))},
		{name: "insecure", def: "false", set: one(parseSwitch)},
	}
}

func storeKeys() []key {
	return []key{
		{name: "state_dir", set: one(parseText)},
		{name: "live_dir", set: one(orNone(parseText))},
		{name: "provider", set: one(parseProvider)},
		{name: "provider_timeout", def: "3s", set: one(duration(time.Millisecond))},
		{name: "services", set: setTerms},
		{name: "store", set: one(parseStore)},
		{name: "max_keys", def: "1000000", set: one(wholeNumber(0, 1<<30))},
		{name: "max_disk", def: "1GiB", set: one(byteSize(leastDisk))},
		{name: "sequences", set: setSequences},
	}
}

func limitKeys() []key {
	return append([]key{
		{name: "memory_limit", def: "0", set: one(byteSize(leastMemory))},
		{name: "max_connections", def: "16384", set: one(wholeNumber(1, 1<<20))},
		{name: "max_connections_per_address", def: "0", set: one(wholeNumber(0, 1<<20))},
		{name: "max_in_flight", def: "8192", set: one(wholeNumber(1, 1<<20))},
		{name: "rate_limit", def: "1000", set: one(wholeNumber(0, 1<<20))},
		{name: "rate_burst", def: "5000", set: one(wholeNumber(1, 1<<20))},
		{name: "drain_delay", def: "1s", set: one(duration(0))},
		{name: "drain_timeout", def: "5s", set: one(duration(0))},
	}, logKeys()...)
}

func serviceTermsKeys() []key {
	return []key{
		{name: "epoch", set: setEpoch},
		{name: "layout", set: one(oneOf(LayoutDefault, LayoutJS))},
		{name: "bit_ts", set: one(wholeNumber(minBitTS, maxBitTS))},
		{name: "bit_id", set: one(wholeNumber(1, 30))},
		{name: "bit_seq", set: one(wholeNumber(0, 30))},
		{name: "term", set: one(wholeMilliseconds(time.Millisecond))},
		{name: "quarantine", set: one(wholeMilliseconds(0))},
		{name: "pool", set: one(parseServiceName)},
		{name: "max_leases_per_acquire", set: one(wholeNumber(1, 1<<20))},
		{name: "ids", set: one(parseRange)},
	}
}

func prefixKeys() []key {
	return []key{
		{name: "step", set: one(number64(1))},
		{name: "start", set: func(into target, v value) error {
			into.put("start_set", true)
			return one(number64(0))(into, v)
		}},
		{name: "max_value", set: one(number64(0))},
		{name: "on_max", set: one(oneOf("reset", "error"))},
		{name: "ttl", set: one(wholeMilliseconds(0))},
		{name: "block", set: one(wholeNumber(0, maxSequenceBlock))},
	}
}

// With fewer bits the default epoch's time would run out within weeks; with more
// there would be machine IDs for a few hosts only.
const minBitTS, maxBitTS = 32, 52

func findIn(keys []key, name string) (key, bool) {
	i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
	if i < 0 {
		return key{}, false
	}
	return keys[i], true
}

func names(keys []key) (all []string) {
	for _, k := range keys {
		all = append(all, k.name)
	}
	return all
}

// setAll sets the values of one command or of one entry of a map.
func setAll(command string, keys []key, values []value, into target) error {
	for _, v := range values {
		k, known := findIn(keys, v.name)
		if !known {
			return unknownKey(command, keys, v)
		}
		if err := k.set(into, v); err != nil {
			return err
		}
	}
	return nil
}

// unknownKey suggests the key that was probably meant.
func unknownKey(command string, keys []key, v value) error {
	return fmt.Errorf("unknown key %s in %s: %s", quoteName(v.key), v.where, suggest(command, v.name, keys, func(name string) string { return name }))
}

// suggest names the key that was probably meant, as a source spells it.
func suggest(command, name string, keys []key, spell func(string) string) string {
	if near := didyoumean.Name(name, names(keys)); near != "" {
		return "did you mean " + spell(near) + "?"
	}
	return "kazahanad " + command + " --help lists the keys"
}

// one returns the setter of a key with a single value.
func one[T any](parse func(string) (T, error)) setter {
	return func(into target, v value) error {
		text, err := v.scalar()
		if err != nil {
			return err
		}
		parsed, err := parse(text)
		if err != nil {
			return v.refuse(text, err)
		}
		into.put(v.name, parsed)
		return nil
	}
}

// many returns the setter of a key with a list.
func many[T any](parse func(string) (T, error)) setter {
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
		into.put(v.name, parsed)
		return nil
	}
}

// ignored is the setter of config: the file has been read before keys are set.
func ignored(target, value) error { return nil }

func setEpoch(into target, v value) error {
	return one(func(text string) (time.Time, error) { return parseEpoch(text, into.now) })(into, v)
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
	into.put(v.name, meta)
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
	overrides := map[string][]value{}
	err := v.eachEntry("service names", func(service value) error {
		if _, err := parseServiceName(service.name); err != nil {
			return fmt.Errorf("services in %s: %s %w", service.where, quote(service.name), err)
		}
		return nil
	}, func(service value) error {
		overrides[service.name] = service.members
		return setOverrides(&Service{}, service.members, into.now)
	})
	into.serve.overrides = overrides
	return err
}

// setOverrides sets what a service overrides.
func setOverrides(service *Service, overrides []value, now time.Time) error {
	for _, v := range overrides {
		if k, known := findIn(keys, v.name); known && !k.perService {
			return fmt.Errorf("%s in %s: %s cannot differ between services: set it at the top level", v.key, v.where, v.name)
		}
	}
	return setAll("serve", serviceKeys(), overrides, target{structs: []any{service}, now: now})
}

// tenantService is the name of an entry of services: SERVICE, or TENANT/SERVICE.
var tenantService = regexp.MustCompile(`^([A-Za-z0-9._@-]{1,64}/)?[A-Za-z0-9._-]{1,64}$`)

// setTerms reads services of the lease server.
func setTerms(into target, v value) error {
	services := map[string]Terms{}
	err := v.eachEntry("service names", func(service value) error {
		if !tenantService.MatchString(service.name) || strings.HasPrefix(service.name, "default/") {
			return fmt.Errorf("services in %s: %s is not a service name: write SERVICE, or TENANT/SERVICE for another tenant than default",
				service.where, quote(service.name))
		}
		return nil
	}, func(service value) error {
		var terms Terms
		err := setAll("lease-server", termsKeys, service.members, target{structs: []any{&terms}, now: into.now})
		services[service.name] = terms
		return err
	})
	into.server.services = services
	return err
}
