package config

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A daemon and a lease server read the terms of a service alike.
func TestTermsOfServices(t *testing.T) {
	const terms = "epoch: 2026-02-01T00:00:00Z, bit_ts: 42, bit_id: 11, bit_seq: 10, term: 5m, quarantine: 0, pool: p, max_leases_per_acquire: 7, ids: 0-9"
	file := "services:\n  slow: {fallback: none, " + terms + "}\n  js: {layout: js, pool: j}\n  plain: {fallback: none}\n"
	s := mustLoad(t, sourceTexts{file: file})
	want := mustLoadLeaseServer(t, sourceTexts{file: "services: {slow: {" + terms + "}, js: {layout: js, pool: j}}\n"}).Terms()
	// Seed 000-6.4-3.
	if got := s.Terms(); !reflect.DeepEqual(got, want) || got["slow"].Get("max_leases_per_acquire") != "7" {
		t.Errorf("the terms are %v, and at a lease server %v", got, want)
	}
	// They also count before the first lease.
	slow, js, plain := s.Services()["slow"], s.Services()["js"], s.Services()["plain"]
	if slow.BitTS != 42 || slow.DefaultEpoch.Month() != time.February || slow.Fallback != FallbackNone {
		t.Errorf("slow: %+v", slow)
	}
	if js.BitTS != 52 || js.MaxThroughputPerMS != 16 || plain.BitTS != 41 || plain.DefaultEpoch != s.DefaultEpoch {
		t.Errorf("js: %+v\nplain: %+v", js, plain)
	}
	// Where others decide, layout and bit_ts say what to assume before the first lease.
	for _, provider := range []string{"https://h", "'none:'"} {
		if s := mustLoad(t, sourceTexts{file: "provider: " + provider + "\nservices: {web: {layout: js}, old: {bit_ts: 42}}\n"}); len(s.Terms()) > 0 {
			t.Errorf("with %s the terms are %v", provider, s.Terms())
		}
	}
	// Those of the URL are of no service where each one has its own.
	for file, want := range map[string]string{
		"services: {default: {term: 1m}}\n": "default", "service: web\nservices: {web: {term: 1m}}\n": "web",
		"services: {default: {term: 1m}, a: {}}\n": "", "services: {a: {term: 1m}}\n": "", "log_level: info\n": "",
		"provider: https://h\nservices: {default: {layout: js}}\n": "",
	} {
		if got := mustLoad(t, sourceTexts{file: file}).DefaultTerms(); got != want {
			t.Errorf("%s: the default terms are those of %q", file, got)
		}
	}
	// They are cited with the entry's place.
	if got := s.CiteTerms("slow"); got != "services.slow ("+s.Config+" line 2)" {
		t.Errorf("they are cited as %s", got)
	}
}

// A command reads the terms of services alone: it ignores their other keys, also invalid ones, and
// terms for a provider that is not the daemon's.
func TestTermsForCommands(t *testing.T) {
	read := func(file string, env, args []string) map[string]url.Values {
		t.Helper()
		var s Serve
		path := sourceTexts{file: file}.write(t)
		must.Succeed(t, s.Load(&s, args, Process{Environ: env, Now: testNow, defaultFile: path, Only: []string{"provider", "services"}}))
		return s.Terms()
	}
	const odd = "{odd: {fallback: maybe, socket: /x, no such key: 1, default_epoch: 2027-01-01T00:00:00Z, acquire_retry_interval: 1h, term: 1m}, plain: {fallback: none}}"
	for _, terms := range []map[string]url.Values{
		read("services: "+odd+"\n", nil, nil),
		read("", []string{"KAZAHANA_SERVICES=" + odd}, nil),
		read("provider: redis://h\nservices: "+odd+"\n", nil, []string{"--provider=etcd://h"}),
	} {
		if len(terms) != 1 || terms["odd"].Encode() != "term=1m" {
			t.Errorf("the terms are %v", terms)
		}
	}
	for _, file := range []string{"provider: https://h\n", "provider: http+unix:/s\n", "provider: 'none:'\n", "provider: static:3\n"} {
		if terms := read(file+"services: {web: {layout: js}, old: {bit_ts: 42}}\n", nil, []string{"--provider=redis://h"}); len(terms) > 0 {
			t.Errorf("with %s in the file the terms are %v", file, terms)
		}
	}
	if terms := read("services: {web: {layout: js}}\n", []string{"KAZAHANA_PROVIDER=https://h"}, []string{"--provider=redis://h"}); len(terms) > 0 {
		t.Errorf("with https: in the environment the terms are %v", terms)
	}
	// A default file that cannot be read is not passed over.
	var s Serve
	err := s.Load(&s, nil, Process{Now: testNow, defaultFile: t.TempDir(), Only: []string{"services"}})
	if err == nil || !strings.Contains(err.Error(), "--config none goes without a file") {
		t.Errorf("a file that cannot be read: %v", err)
	}
}
