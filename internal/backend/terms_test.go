package backend_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// own is the terms of a service with the parameters.
func own(rawURL, params string) (provider.Terms, error) {
	q, err := url.ParseQuery(params)
	if err != nil {
		return provider.Terms{}, err
	}
	all, err := backend.OwnTerms(rawURL, map[string]url.Values{"slow": q})
	return all["slow"], err
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
		"bit_seq=9&bit_id=9": "services.slow: its terms together: ",
		"layout=js":          "ids=0-99", // of the URL, and there are 64
	} {
		if _, err := own(url9, params); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", params, err, want)
		}
	}
	if _, err := own("redis://host?term=0", "term=1m"); err == nil || !strings.HasPrefix(err.Error(), "provider: term") {
		t.Errorf("of a wrong URL: %v", err)
	}
	if got, err := backend.OwnTerms("redis://host?term=0", nil); err != nil || got != nil {
		t.Errorf("without any: %v, %v", got, err)
	}
}
