package config

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

const leaseServerSample = "../../../packaging/lease-server.yaml"

var regexpFile = regexp.MustCompile(`/[^ ]*k\.yaml`)

func loadLeaseServer(t *testing.T, src sourceTexts) (*LeaseServer, error) {
	t.Helper()
	var s LeaseServer
	return &s, s.Load(&s, src.args, Process{Environ: src.env, UID: src.uid, Now: testNow, defaultFile: src.write(t)})
}

func mustLoadLeaseServer(t *testing.T, src sourceTexts) *LeaseServer {
	t.Helper()
	s, err := loadLeaseServer(t, src)
	must.Succeed(t, err)
	return s
}

func TestLeaseServerDefaults(t *testing.T) {
	got := mustLoadLeaseServer(t, sourceTexts{})
	want := &LeaseServer{
		origins: origins{}, Access: defaultAccess, Leases: defaultLeases, Records: defaultRecords, Logging: defaultLogging,
		Listen: "127.0.0.1:7464", MaxConnections: 16384, MaxInFlight: 8192, DrainTimeout: 5 * time.Second, RateLimit: 1000, RateBurst: 5000, DrainDelay: time.Second,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestLeaseServerPrecedence(t *testing.T) {
	cases := map[string][3]string{
		"listen": {"127.0.0.1:1", "unix:/b", "localhost:3"}, "socket_mode": {"0600", "0666", "0o777"}, "socket_group": {"a", "b", "c"},
		"tls_cert": {"a", "b", "c"}, "tls_key": {"a", "b", "c"}, "client_ca": {"a", "b", "c"}, "tokens_file": {"a", "b", "c"},
		"insecure": {"true", "yes", "on"}, "state_dir": {"/a", "/b", "/c"}, "live_dir": {"/a", "/b", "/c"}, "provider": {"sqlite:/a", "redis://b", "etcd://c"},
		"provider_timeout": {"1s", "2s", "4s"}, "services": {"{a: {}}", "{b: {}}", "{c: {}}"},
		"store": {"sqlite:/a", "none", "etcd://c"}, "sequences": {"{a: {}}", "{b: {step: 3}}", "{c: {}}"},
		"memory_limit": {"16MiB", "1GiB", "20000000"}, "max_connections": {"1", "2", "3"}, "max_in_flight": {"1", "2", "3"}, "max_connections_per_address": {"1", "2", "3"}, "max_keys": {"0", "2", "3"}, "max_disk": {"0", "2048KiB", "3 MiB"}, "rate_limit": {"0", "2", "3"}, "rate_burst": {"1", "2", "3"},
		"drain_delay": {"2s", "3s", "0"}, "drain_timeout": {"1s", "2s", "0"}, "log_level": {"debug", "warn", "error"}, "log_format": {"json", "console", "json"},
	}
	checkPrecedence(t, keysOf(flagsOf(&LeaseServer{})), cases, map[string]string{"tls_cert": "x", "tls_key": "x"}, func(src sourceTexts) any {
		s := mustLoadLeaseServer(t, src)
		s.origins, s.Config = nil, ""
		for name := range s.ServiceTerms {
			s.ServiceTerms[name] = Terms{Params: s.ServiceTerms[name].Params}
		}
		return s
	})
}

func TestLeaseServerTerms(t *testing.T) {
	s := mustLoadLeaseServer(t, sourceTexts{file: `
services:
  orders: {epoch: 2026-02-01T00:00:00Z, bit_ts: 42, bit_id: 11, bit_seq: 10, term: 5m, quarantine: 0, pool: p, max_leases_per_acquire: 7, ids: 0-9}
  acme/orders: {}
`})
	services := s.Services()
	if got := slices.Sorted(maps.Keys(services)); !slices.Equal(got, []string{"acme/orders", "orders"}) {
		t.Fatal(got)
	}
	o := services["orders"]
	// Seed 000-10.2-1.
	if o.Epoch.Format(time.RFC3339) != "2026-02-01T00:00:00Z" || o.BitTS != 42 || o.BitID != 11 || o.BitSeq != 10 || o.Term != 5*time.Minute ||
		o.Quarantine != 0 || o.Pool != "p" || o.MaxLeases != 7 || o.IDs != "0-9" {
		t.Errorf("%+v", o)
	}
	const params = "bit_id=11&bit_seq=10&bit_ts=42&epoch=2026-02-01T00%3A00%3A00Z&ids=0-9&max_leases_per_acquire=7&pool=p&quarantine=0&term=5m"
	if got := o.Params.Encode(); got != params {
		t.Errorf("the parameters are %s, want %s", got, params)
	}
	if got := services["acme/orders"]; len(got.Params) > 0 || got.Term != 0 {
		t.Errorf("%+v", got)
	}
}

func TestLeaseServerRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		src  sourceTexts
		want string
	}{
		"unknown key":      {sourceTexts{file: "token_file: x\n"}, "unknown key token_file in FILE line 1: did you mean tokens_file?"},
		"a daemon's key":   {sourceTexts{file: "fallback: none\n"}, "kazahanad lease-server --help lists the keys"},
		"unknown variable": {sourceTexts{env: []string{"KAZAHANA_RATE_LIMITS=1"}}, "did you mean KAZAHANA_RATE_LIMIT?"},
		"unknown term":     {sourceTexts{file: "services:\n  a:\n    bitseq: 9\n"}, "unknown key services.a.bitseq in FILE line 3: did you mean bit_seq?"},
		"bad term":         {sourceTexts{file: "services: {a: {term: 5}}\n"}, "services.a.term in FILE line 1: \"5\" has no unit"},
		"fine term":        {sourceTexts{file: "services: {a: {term: 5us}}\n"}, "too short"},
		"odd term":         {sourceTexts{file: "services: {a: {term: 1000500us}}\n"}, "whole milliseconds"},
		"bad range":        {sourceTexts{file: "services: {a: {ids: 0..9}}\n"}, "LOW-HIGH"},
		"bad name":         {sourceTexts{file: "services: {a/b/c: {}}\n"}, "TENANT/SERVICE"},
		"default tenant":   {sourceTexts{file: "services: {default/a: {}}\n"}, "TENANT/SERVICE"},
		"future epoch":     {sourceTexts{file: "services: {a: {epoch: 2027-01-01T00:00:00Z}}\n"}, "in the future"},
		"no map":           {sourceTexts{file: "services: a\n"}, "not a map"},
		"bad address":      {sourceTexts{args: []string{"--listen", "7464"}}, "127.0.0.1:7464"},
		"key alone":        {sourceTexts{args: []string{"--tls-key", "k"}}, "go together"},
		"CA without TLS":   {sourceTexts{args: []string{"--client-ca", "c"}}, "client_ca (--client-ca) needs TLS"},
		"static":           {sourceTexts{args: []string{"--provider", "static:1"}}, "coordinates"},
		"Kubernetes":       {sourceTexts{env: []string{"KUBERNETES_SERVICE_HOST=1"}}, "no default"},
		"group":            {sourceTexts{args: []string{"--socket-group", "g", "--socket-mode", "0600"}}, "does not let a group connect"},
	} {
		_, err := loadLeaseServer(t, test.src)
		if err == nil || !strings.Contains(regexpFile.ReplaceAllString(err.Error(), "FILE"), test.want) {
			t.Errorf("%s: the error is %v, want one with %q", name, err, test.want)
		}
	}
	// A client's variable is no mistake in the server's environment.
	mustLoadLeaseServer(t, sourceTexts{env: []string{"KAZAHANA_SOCKET=/x"}})
}

// Beyond this host the server insists on TLS and on a credential.
func TestLeaseServerInsecure(t *testing.T) {
	tls := []string{"--tls-cert", "c", "--tls-key", "k"}
	for _, test := range []struct {
		listen string
		more   []string
		want   string // "" = accepted
	}{
		{"127.0.0.1:7464", nil, ""}, {"127.8.0.1:1", nil, ""}, {"[::1]:7464", nil, ""}, {"localhost:7464", nil, ""}, {"unix:/run/l.sock", nil, ""},
		{":7464", nil, "TLS (tls_cert, tls_key) and a credential"}, {"0.0.0.0:7464", nil, "TLS"}, {"[::]:7464", nil, "TLS"},
		{"10.0.0.1:7464", nil, "TLS"}, {"db.example:7464", nil, "TLS"}, {"localhost.example:7464", nil, "TLS"},
		{":7464", tls, "lacks a credential of clients"},
		{":7464", []string{"--tokens-file", "t"}, "lacks TLS"},
		{":7464", append([]string{"--tokens-file", "t"}, tls...), ""},
		{":7464", append([]string{"--client-ca", "t"}, tls...), ""},
		{":7464", []string{"--insecure"}, ""},
	} {
		_, err := loadLeaseServer(t, sourceTexts{args: append([]string{"--listen", test.listen}, test.more...)})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "--insecure")) {
			t.Errorf("%s %v: %v, want %q", test.listen, test.more, err, test.want)
		}
	}
}

// A lease server would keep the records of another one's tenants as one tenant's.
func TestLeaseServerBehindAnother(t *testing.T) {
	for _, test := range []struct {
		file string
		ok   bool
	}{
		{"provider: https://h\n", false}, {"provider: https://h\nstore: none\n", true}, {"provider: https://h\nstore: sqlite:/s.db\n", true},
		{"store: https://h\n", false}, {"store: HTTP://h\n", false}, {"store: http+unix:/run/l.sock\n", false}, {"provider: redis://h/0\n", true},
	} {
		if _, err := loadLeaseServer(t, sourceTexts{file: test.file}); (err == nil) != test.ok || err != nil && !strings.Contains(err.Error(), "another lease server") {
			t.Errorf("%s: %v", test.file, err)
		}
	}
}

// The sample changes nothing as installed; with every line switched on it has
// every key once, in the order of the table, with its default where it has one.
func TestLeaseServerSample(t *testing.T) {
	b, err := os.ReadFile(leaseServerSample)
	must.Succeed(t, err)
	got, want := mustLoadLeaseServer(t, sourceTexts{file: string(b)}), mustLoadLeaseServer(t, sourceTexts{})
	got.Config = ""
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	enabled := disabledSetting.ReplaceAllString(string(b), "$1")
	s := mustLoadLeaseServer(t, sourceTexts{file: enabled})
	if s.StateDir != want.StateDir || s.Provider != want.Provider {
		t.Errorf("paths: %s, %s", s.StateDir, s.Provider)
	}
	for _, f := range flagsOf(&Terms{}) {
		if !s.Services()["orders"].Params.Has(f.key()) && f.key() != "layout" { // which goes without widths
			t.Errorf("the sample does not show the terms' %s", f.key())
		}
	}
	checkSample(t, string(b), &LeaseServer{})
}
