package backend_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// What a service leaves out is as the provider's URL says.
func TestTerms(t *testing.T) {
	base, err := backend.Terms("redis://:hunter2@host/0?term=4m&quarantine=1m&bit_seq=9&pool=p&ids=0-99&min_replicas=1&prefix=x")
	must.Succeed(t, err)
	want := provider.DefaultTerms()
	want.Term, want.Quarantine, want.Pool, want.BitSeq, want.BitID = 4*time.Minute, time.Minute, "p", 9, 13
	want.IDs = provider.IDRange{Low: 0, End: 100}
	if base != want {
		t.Errorf("base: %+v, want %+v", base, want)
	}
	for name, test := range map[string]struct {
		params string
		max    int
		change func(*provider.Terms)
	}{
		"nothing":      {"", 0, func(*provider.Terms) {}},
		"bit_seq":      {"bit_seq=10", 0, func(t *provider.Terms) { t.BitSeq, t.BitID = 10, 12 }},
		"bit_id":       {"bit_id=14", 0, func(t *provider.Terms) { t.BitSeq, t.BitID = 8, 14 }},
		"bit_ts":       {"bit_ts=42", 0, func(t *provider.Terms) { t.Timeline.BitTS, t.BitID = 42, 12 }},
		"term":         {"term=2m", 0, func(t *provider.Terms) { t.Term, t.Quarantine = 2*time.Minute, 2*time.Minute }},
		"term and its": {"term=2m&quarantine=0s", 0, func(t *provider.Terms) { t.Term, t.Quarantine = 2*time.Minute, 0 }},
		"pool and leases": {"pool=q&ids=5-6", 3, func(t *provider.Terms) {
			t.Pool, t.IDs, t.MaxLeasesPerAcquire = "q", provider.IDRange{Low: 5, End: 7}, 3
		}},
	} {
		q, err := url.ParseQuery(test.params)
		must.Succeed(t, err)
		want := base
		test.change(&want)
		if got, err := backend.Override(base, q, test.max); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	if got, err := backend.Override(base, url.Values{"layout": {"js"}, "ids": {"0-9"}}, 0); err != nil || got.Layout() != snowflake.JSLayout() {
		t.Errorf("with layout js: %+v, %v", got, err)
	}
	if _, err := backend.Override(base, url.Values{"bit_seq": {"9"}, "bit_id": {"9"}}, 0); err == nil {
		t.Error("a layout of 60 bits was accepted")
	}
}
