package config

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"
)

// leaseServerKeys are the lease server's keys, in the order of its packaged sample;
// termsKeys are those of an entry of services. init fills both, because a setter
// looks keys up in them.
var leaseServerKeys, termsKeys []key

func init() {
	leaseServerKeys = append(leaseServerListenKeys(), leaseServerOtherKeys()...)
	termsKeys = serviceTermsKeys()
}

func leaseServerListenKeys() []key {
	return []key{
		{name: "config", set: ignored},
		{name: "listen", def: "127.0.0.1:7464", set: one(func(t target) *string { return &t.server.Listen }, parseListen)},
		{name: "socket_mode", def: "0660", set: one(func(t target) *fs.FileMode { return &t.server.SocketMode }, parseMode)},
		{name: "socket_group", set: one(func(t target) *string { return &t.server.SocketGroup }, orNone(parseText))},
		{name: "tls_cert", set: one(func(t target) *string { return &t.server.TLSCert }, orNone(parseText))},
		{name: "tls_key", set: one(func(t target) *string { return &t.server.TLSKey }, orNone(parseText))},
		{name: "client_ca", set: one(func(t target) *string { return &t.server.ClientCA }, orNone(parseText))},
		{name: "tokens_file", set: one(func(t target) *string { return &t.server.TokensFile }, orNone(parseText))},
		{name: "insecure", def: "false", set: one(func(t target) *bool { return &t.server.Insecure }, parseSwitch)},
	}
}

func leaseServerOtherKeys() []key {
	return []key{
		{name: "state_dir", set: one(func(t target) *string { return &t.server.StateDir }, parseText)},
		{name: "live_dir", set: one(func(t target) *string { return &t.server.LiveDir }, orNone(parseText))},
		{name: "provider", set: one(func(t target) *string { return &t.server.Provider }, parseProvider)},
		{name: "provider_timeout", def: "3s",
			set: one(func(t target) *time.Duration { return &t.server.ProviderTimeout }, duration(time.Millisecond))},
		{name: "services", set: setTerms},
		{name: "store", set: one(func(t target) *string { return &t.server.Store }, parseStore)},
		{name: "sequences", set: setSequences(func(t target) *[]Sequence { return &t.server.Sequences })},
		{name: "max_connections", def: "16384",
			set: one(func(t target) *int { return &t.server.MaxConnections }, wholeNumber(1, 1<<20))},
		{name: "quota_connections", def: "8192",
			set: one(func(t target) *int { return &t.server.QuotaConnections }, wholeNumber(1, 1<<20))},
		{name: "max_in_flight", def: "8192",
			set: one(func(t target) *int { return &t.server.MaxInFlight }, wholeNumber(1, 1<<20))},
		{name: "quota_waiting", def: "2048",
			set: one(func(t target) *int { return &t.server.QuotaWaiting }, wholeNumber(1, 1<<20))},
		{name: "rate_limit", def: "1000",
			set: one(func(t target) *int { return &t.server.RateLimit }, wholeNumber(0, 1<<20))},
		{name: "rate_burst", def: "5000",
			set: one(func(t target) *int { return &t.server.RateBurst }, wholeNumber(1, 1<<20))},
		{name: "drain_delay", def: "1s",
			set: one(func(t target) *time.Duration { return &t.server.DrainDelay }, duration(0))},
		{name: "drain_timeout", def: "5s",
			set: one(func(t target) *time.Duration { return &t.server.DrainTimeout }, duration(0))},
		{name: "log_level", def: string(LogInfo),
			set: one(func(t target) *LogLevel { return &t.server.LogLevel }, oneOf(LogDebug, LogInfo, LogWarn, LogError))},
		{name: "log_format", def: string(LogAuto),
			set: one(func(t target) *LogFormat { return &t.server.LogFormat }, oneOf(LogAuto, LogJSON, LogConsole))},
	}
}

// longestTerm is the longest term and quarantine that a provider accepts.
const longestTerm = 366 * 24 * time.Hour

func serviceTermsKeys() []key {
	return []key{
		{name: "epoch", set: func(into target, v value) error {
			parse := func(text string) (time.Time, error) { return parseEpoch(text, into.now) }
			return one(func(t target) *time.Time { return made(&t.terms.Epoch) }, parse)(into, v)
		}},
		{name: "layout", set: one(func(t target) *Layout { return made(&t.terms.Layout) }, oneOf(LayoutDefault, LayoutJS))},
		{name: "bit_ts", set: one(func(t target) *int { return made(&t.terms.BitTS) }, wholeNumber(minBitTS, maxBitTS))},
		{name: "bit_id", set: one(func(t target) *int { return made(&t.terms.BitID) }, wholeNumber(1, 30))},
		{name: "bit_seq", set: one(func(t target) *int { return made(&t.terms.BitSeq) }, wholeNumber(0, 30))},
		{name: "term", set: one(func(t target) *time.Duration { return made(&t.terms.Term) }, wholeMilliseconds(time.Millisecond))},
		{name: "quarantine", set: one(func(t target) *time.Duration { return made(&t.terms.Quarantine) }, wholeMilliseconds(0))},
		{name: "pool", set: one(func(t target) *string { return made(&t.terms.Pool) }, parseServiceName)},
		{name: "max_leases_per_acquire", set: one(func(t target) *int { return made(&t.terms.MaxLeases) }, wholeNumber(1, 1<<20))},
		{name: "ids", set: one(func(t target) *string { return made(&t.terms.IDs) }, parseRange)},
	}
}

// made allocates the value of a pointer field and returns the pointer.
func made[T any](field **T) *T {
	*field = new(T)
	return *field
}

func wholeMilliseconds(lowest time.Duration) func(string) (time.Duration, error) {
	return func(text string) (time.Duration, error) {
		d, err := duration(lowest)(text)
		if err == nil && (d%time.Millisecond != 0 || d > longestTerm) {
			err = fmt.Errorf("must be whole milliseconds, at most %s", formatDuration(longestTerm))
		}
		return d, err
	}
}

var idRange = regexp.MustCompile(`^[0-9]{1,10}-[0-9]{1,10}$`)

func parseRange(text string) (string, error) {
	if !idRange.MatchString(text) {
		return "", errors.New("is not a range of machine IDs: write LOW-HIGH, for example 0-999")
	}
	return text, nil
}

// parseListen accepts host:port and unix:PATH.
func parseListen(text string) (string, error) {
	address, err := parseAdminListen(text)
	if err != nil && !strings.HasPrefix(text, "unix:") {
		err = errors.New("is not an address: write HOST:PORT, for example 127.0.0.1:7464, or unix:PATH")
	}
	return address, err
}

// tenantService is the name of an entry of services: SERVICE, or TENANT/SERVICE.
var tenantService = regexp.MustCompile(`^([A-Za-z0-9._@-]{1,64}/)?[A-Za-z0-9._-]{1,64}$`)

// setTerms reads services.
func setTerms(into target, v value) error {
	members, err := v.entries("service names")
	if err != nil {
		return err
	}
	services := map[string]Terms{}
	for _, service := range members {
		if !tenantService.MatchString(service.name) || strings.HasPrefix(service.name, "default/") {
			return fmt.Errorf("services in %s: %s is not a service name: write SERVICE, or TENANT/SERVICE for another tenant than default",
				service.where, quote(service.name))
		}
		if service.kind != mapping {
			return service.errorf("it is a %v, and must be a map of keys; {} changes nothing", service.kind)
		}
		var terms Terms
		for _, setting := range service.members {
			k, known := findIn(termsKeys, setting.name)
			if !known {
				return unknownIn("lease-server", termsKeys, setting)
			}
			if err := k.set(target{terms: &terms, now: into.now}, setting); err != nil {
				return err
			}
		}
		services[service.name] = terms
	}
	into.server.services = services
	return nil
}
