package backend_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// settings are services with terms of their own, as parameters.
type settings map[string]string

func (s settings) Terms() map[string]url.Values {
	all := map[string]url.Values{}
	for service, params := range s {
		all[service], _ = url.ParseQuery(params)
	}
	return all
}

func (s settings) DefaultTerms() string { return "" }

func (s settings) CiteTerms(service string) string {
	if _, has := s[service]; !has {
		return ""
	}
	return "services." + service + " (FILE line 3)"
}

// covered are settings in which every service has terms of its own.
type covered struct{ settings }

func (covered) DefaultTerms() string { return "default" }

// only are settings of the one service slow.
type only struct{ settings }

func (only) DefaultTerms() string { return "slow" }

// own is the terms of a service with the parameters.
func own(rawURL, params string) (provider.Terms, error) {
	o, err := backend.OptionsFor(rawURL, "", only{settings{"slow": params}})
	return o.Services["slow"], err
}

// What a service leaves out is as the provider's URL says.
func TestTerms(t *testing.T) {
	const url9 = "redis://:hunter2@host/0?term=4m&quarantine=1m&bit_seq=9&pool=p&ids=0-99&min_replicas=1&prefix=x"
	base, err := backend.Terms(url9)
	must.Succeed(t, err)
	want := provider.DefaultTerms()
	want.Term, want.Quarantine, want.Pool, want.BitSeq, want.BitID = 4*time.Minute, time.Minute, "p", 9, 13
	want.IDs = provider.IDRange{Low: 0, End: 100}
	if base != want {
		t.Errorf("base: %+v, want %+v", base, want)
	}
	const most = "&max_leases_per_acquire="
	for name, test := range map[string]struct {
		params string
		change func(*provider.Terms)
	}{
		"nothing":      {"", func(*provider.Terms) {}},
		"bit_seq":      {"bit_seq=10", func(t *provider.Terms) { t.BitSeq, t.BitID = 10, 12 }},
		"bit_id":       {"bit_id=14", func(t *provider.Terms) { t.BitSeq, t.BitID = 8, 14 }},
		"bit_ts":       {"bit_ts=42", func(t *provider.Terms) { t.Timeline.BitTS, t.BitID = 42, 12 }},
		"term":         {"term=2m", func(t *provider.Terms) { t.Term, t.Quarantine = 2*time.Minute, 2*time.Minute }},
		"term and its": {"term=2m&quarantine=0s", func(t *provider.Terms) { t.Term, t.Quarantine = 2*time.Minute, 0 }},
		"pool and leases": {"pool=q&ids=5-6" + most + "3", func(t *provider.Terms) {
			t.Pool, t.IDs, t.MaxLeasesPerAcquire = "q", provider.IDRange{Low: 5, End: 7}, 3
		}},
	} {
		want := base
		test.change(&want)
		if got, err := own(url9, test.params); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	if got, err := own(url9, "layout=js&ids=0-9"); err != nil || got.Layout() != snowflake.JSLayout() {
		t.Errorf("with layout js: %+v, %v", got, err)
	}
	for params, want := range map[string]string{
		"bit_seq=9&bit_id=9": "services.slow (FILE line 3): its terms together: ",
		"layout=js":          "ids=0-99", // of the URL, and there are 64
	} {
		if _, err := own(url9, params); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", params, err, want)
		}
	}
	if _, err := own("redis://host?term=0", "term=1m"); err == nil || !strings.HasPrefix(err.Error(), "provider: term") {
		t.Errorf("of a wrong URL: %v", err)
	}
	if got, err := backend.OptionsFor("redis://host?term=0", "", settings{}); err != nil || got.Services != nil {
		t.Errorf("without any: %v, %v", got, err)
	}
}

// What the URL of a command line says wins over the terms of the service that it asks for.
func TestTermsOfACommand(t *testing.T) {
	const rawURL = "redis://host/0?ids=4096-8191&term=4m"
	services := settings{
		"slow":  "ids=0-99&pool=batch&epoch=2026-02-01T00:00:00Z&term=5m&quarantine=0s",
		"wide":  "bit_seq=10&ids=0-9&term=20m", // its layout has no machine ID 4096
		"exact": "layout=js&pool=js",
	}
	base, err := backend.Terms(rawURL)
	must.Succeed(t, err)
	batch := base
	batch.Pool, batch.Quarantine, batch.Timeline.EpochMS = "batch", 0, time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	asked := func(rawURL, service string) provider.Terms {
		t.Helper()
		o, err := backend.OptionsToAsk(rawURL, service, services)
		must.Succeed(t, err)
		p, err := backend.OpenProvider(rawURL, o)
		must.Succeed(t, err)
		must.Succeed(t, p.Close())
		if wide := o.Services["wide"]; service != "wide" && (wide.Term != 20*time.Minute || wide.IDs == (provider.IDRange{Low: 0, End: 10})) {
			t.Errorf("wide, for which nothing is asked: %+v", wide)
		}
		return o.Services[service]
	}
	if got := asked(rawURL, "slow"); got != batch {
		t.Errorf("slow: %+v, want %+v", got, batch)
	}
	if got := asked(rawURL, "other"); got != base {
		t.Errorf("one that is not in services: %+v, want %+v", got, base)
	}
	batch.Pool = "p"
	if got := asked(rawURL+"&pool=p", "slow"); got != batch {
		t.Errorf("slow in pool p: %+v, want %+v", got, batch)
	}
	for params, want := range map[string]string{
		"layout=default&pool=d": "41/14/8", "bit_seq=9&pool=d": "41/13/9", "bit_id=13&pool=d": "41/13/9", "bit_ts=42&pool=d": "42/13/8", "term=5m": "52/6/4",
	} {
		if got := asked("redis://host/0?"+params, "exact").Layout(); fmt.Sprint(got) != want && want != "52/6/4" || want == "52/6/4" && got != snowflake.JSLayout() {
			t.Errorf("with %s in the URL the layout is %v, want %s", params, got, want)
		}
	}
	for params, want := range map[string]string{"bit_seq=9": "41/13/9", "bit_id=13": "41/13/9", "layout=default": "41/14/8"} {
		if got := asked("redis://host/0?"+params, "wide").Layout(); fmt.Sprint(got) != want {
			t.Errorf("with %s in the URL the layout of wide is %v, want %s", params, got, want)
		}
	}
	// Without a URL on the command line the terms are the daemon's.
	o, err := backend.OptionsFor("redis://host/0?ids=0-99", "slow", settings{"slow": "ids=5-6"})
	must.Succeed(t, err)
	if got := o.Services["slow"].IDs; got != (provider.IDRange{Low: 5, End: 7}) {
		t.Errorf("slow has %v", got)
	}
	_, err = backend.OptionsToAsk("redis://host/0?term=0", "slow", settings{})
	if err == nil || !strings.HasPrefix(err.Error(), "provider: term") {
		t.Errorf("of a wrong URL: %v", err)
	}
}

// Terms that contradict each other are refused at the place of the later one.
func TestContradictingTerms(t *testing.T) {
	for range 10 { // whatever the order of a map
		_, err := backend.OptionsFor("redis://host", "", settings{"a": "pool=p", "b": "pool=p&bit_ts=42", "c": "pool=p&bit_ts=42"})
		if err == nil || !strings.HasPrefix(err.Error(), "services.b (FILE line 3): ") || !strings.Contains(err.Error(), `pool "p"`) {
			t.Fatalf("the error is %v", err)
		}
	}
	_, err := backend.OptionsFor("redis://host", "", settings{"a": "pool=p&bit_seq=2", "b": "pool=p&bit_seq=12"})
	if err == nil || !strings.HasPrefix(err.Error(), "services.b (FILE line 3): ") || !strings.Contains(err.Error(), "bit_seq 2") {
		t.Errorf("the error is %v", err)
	}
	_, err = backend.OptionsFor("redis://host", "foreign", covered{settings{"default": "bit_ts=42"}})
	if err == nil || !strings.HasPrefix(err.Error(), `service "foreign": `) {
		t.Errorf("the error is %v", err)
	}
}

// Where every service has terms of its own, those of the URL need not fit the store.
func TestTermsOfTheURLAlone(t *testing.T) {
	for rawURL, services := range map[string]settings{
		"kubernetes:?kubeconfig=/none":          {"default": "bit_seq=10", "b": "bit_seq=10"},
		"kubernetes:?kubeconfig=/none&pool=a.b": {"default": "pool=ab"},
		"redis://host":                          {"default": "bit_ts=42"},
		"etcd://host:2379":                      {"default": "epoch=2026-02-01T00:00:00Z", "b": "epoch=2026-02-01T00:00:00Z"},
		"postgres://host/d":                     {"default": "layout=js"},
		"memory:":                               {"default": "layout=js"},
		"sqlite:" + t.TempDir() + "/leases.db":  {"default": "layout=js"},
	} {
		for _, test := range []struct {
			backend.Settings
			want string
		}{{covered{services}, ""}, {services, "pool"}} {
			o, err := backend.OptionsFor(rawURL, "", test.Settings)
			var p provider.Provider
			if err == nil {
				p, err = backend.OpenProvider(rawURL, o)
			}
			if err == nil {
				defer p.Close()
			}
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s: %v, want %q", rawURL, err, test.want)
			}
		}
	}
}

// A file is compared with the pools that services use, and with no other.
func TestPoolsOfAFile(t *testing.T) {
	path := t.TempDir() + "/leases.db"
	other, err := backend.OpenProvider("sqlite:"+path+"?bit_ts=42", backend.ProviderOptions{})
	must.Succeed(t, err)
	defer other.Close()
	_, err = other.Acquire(t.Context(), provider.AcquireRequest{ThroughputPerMS: 1})
	must.Succeed(t, err)
	mine := settings{"default": "pool=mine"}
	for _, test := range []struct {
		backend.Settings
		wrong bool
	}{{covered{mine}, false}, {mine, true}} {
		o, err := backend.OptionsFor("sqlite:"+path, "", test.Settings)
		must.Succeed(t, err)
		u, err := url.Parse("sqlite:" + path)
		must.Succeed(t, err)
		file, err := backend.ParseLeaseFile(u, o)
		must.Succeed(t, err)
		if err := file.Check(t.Context()); errors.Is(err, provider.ErrInvalid) != test.wrong {
			t.Errorf("wrong is %t, and the check says %v", test.wrong, err)
		}
		p, err := backend.OpenProvider("sqlite:"+path, o)
		must.Succeed(t, err)
		if err := p.Ready(t.Context()); errors.Is(err, provider.ErrInvalid) != test.wrong {
			t.Errorf("wrong is %t, and Ready says %v", test.wrong, err)
		}
		must.Succeed(t, p.Close())
	}
}
