package provider

import (
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/snowflake"
)

func parse(t *testing.T, rawQuery string) (Terms, error) {
	t.Helper()
	q, err := connurl.ParseQuery(rawQuery, TermsParams())
	if err != nil {
		return Terms{}, err
	}
	return ParseTerms(q)
}

func TestParseTerms(t *testing.T) {
	edit := func(f func(*Terms)) Terms {
		terms := DefaultTerms()
		f(&terms)
		return terms
	}
	layout := func(ts, id, seq int) Terms {
		return edit(func(t *Terms) { t.Timeline.BitTS, t.BitID, t.BitSeq = ts, id, seq })
	}
	// Seeds 000-2.1-1, 000-6.4-2, 000-10.2-1, 000-13-1, 000-A.12-1 and 003-4.3-2: the defaults.
	defaults := Terms{
		Pool: "default", Timeline: snowflake.Timeline{EpochMS: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(), BitTS: 41}, BitID: 14, BitSeq: 8,
		Term: 10 * time.Minute, Quarantine: 10 * time.Minute, MaxLeasesPerAcquire: 256,
	}
	if got := DefaultTerms(); got != defaults {
		t.Errorf("the defaults are %+v, want %+v", got, defaults)
	}
	for query, want := range map[string]Terms{
		"":                     DefaultTerms(),
		"term=5m":              edit(func(t *Terms) { t.Term, t.Quarantine = 5*time.Minute, 5*time.Minute }),
		"term=5m&quarantine=0": edit(func(t *Terms) { t.Term, t.Quarantine = 5*time.Minute, 0 }),
		"quarantine=1500ms":    edit(func(t *Terms) { t.Quarantine = 1500 * time.Millisecond }),
		"pool=a.B_c-9":         edit(func(t *Terms) { t.Pool = "a.B_c-9" }),
		// Seeds 003-4.3-2 and 003-5-4: ranges.
		"ids=0-0":                             edit(func(t *Terms) { t.IDs = IDRange{0, 1} }),
		"ids=0-8191":                          edit(func(t *Terms) { t.IDs = IDRange{0, 8192} }),
		"epoch=1000":                          edit(func(t *Terms) { t.Timeline.EpochMS = 1000 }),
		"epoch=2020-01-01T00:00:00Z":          edit(func(t *Terms) { t.Timeline.EpochMS = 1577836800000 }),
		"epoch=2020-01-01T09:00:00+09:00":     edit(func(t *Terms) { t.Timeline.EpochMS = 1577836800000 }),
		"epoch=2020-01-01T09:00:00.5%2B09:00": edit(func(t *Terms) { t.Timeline.EpochMS = 1577836800500 }),
		"bit_seq=9":                           layout(41, 13, 9), // seed 000-10.1-1
		"bit_id=13":                           layout(41, 13, 9),
		"layout=js":                           layout(52, 7, 4),
		"layout=default":                      DefaultTerms(),
		"bit_ts=42":                           layout(42, 13, 8),
		"bit_ts=42&bit_seq=0":                 layout(42, 21, 0),
		"bit_ts=40&bit_id=14&bit_seq=9":       layout(40, 14, 9),
		"bit_ts=33&bit_id=30":                 layout(33, 30, 0),
		"bit_ts=1&bit_id=1&bit_seq=61":        layout(1, 1, 61),
		"bit_ts=1&bit_id=62&ids=1-2":          edit(func(t *Terms) { t.Timeline.BitTS, t.BitID, t.BitSeq, t.IDs = 1, 62, 0, IDRange{1, 3} }),
		"term=1ms&quarantine=8784h":           edit(func(t *Terms) { t.Term, t.Quarantine = time.Millisecond, MaxTerm }),
	} {
		if got, err := parse(t, query); err != nil || got != want {
			t.Errorf("%q gave %+v (%v), want %+v", query, got, err, want)
		}
	}
}

func TestParseTermsRefuses(t *testing.T) {
	for query, want := range map[string]string{
		"trem=5m":                         `"trem"`,
		"term=5":                          "term=5: write a duration",
		"term=":                           "term=",
		"term=0s":                         "term is 0s",
		"term=-1m":                        "term is -1m0s",
		"term=1500us":                     "whole milliseconds",
		"term=9000h":                      "term is 9000h",
		"quarantine=-1ms":                 "quarantine is -1ms",
		"pool=":                           `pool ""`,
		"pool=a/b":                        `pool "a/b"`,
		"pool=" + strings.Repeat("x", 65): "pool",
		"ids=5":                           "ids=5",
		"ids=9-5":                         "ids=9-5",
		"ids=-1-5":                        "ids=-1-5",
		"ids=0-8192":                      "has 0-8191", // seed 000-6.3-1
		"ids=0-9223372036854775807":       "ids=",
		"epoch=yesterday":                 "epoch=yesterday",
		"epoch=2020-01-01T00:00:00.0005Z": "whole milliseconds",
		"bit_seq=x":                       "bit_seq=x",
		"layout=jst":                      `no layout "jst"`,
		"layout=js&bit_seq=4":             "give one of them",
		"bit_id=14&bit_seq=9":             "and must be 63",
		"bit_id=0":                        "bit_id must be at least 1",
		"bit_seq=-1":                      "at least",
		"bit_seq=62":                      "at least",
		"bit_ts=9999999":                  "at least",
	} {
		if got, err := parse(t, query); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gave %+v and the error %v, want one with %q", query, got, err, want)
		}
	}
}

func TestTermsParamsAreAllKnown(t *testing.T) {
	for _, name := range TermsParams() {
		if _, err := ParseTerms(url.Values{name: {"?"}}); err == nil {
			t.Errorf("ParseTerms ignores %s", name)
		}
	}
}

func TestLeaseCount(t *testing.T) {
	terms := DefaultTerms()
	for throughput, want := range map[int64]int{
		math.MinInt64: 1, 0: 1, 1: 1, 256: 1, 257: 2, 1024: 4, 65536: 256, 65537: 256, math.MaxInt64: 256,
	} {
		if got := terms.LeaseCount(throughput); got != want { // seed 000-4.3-2
			t.Errorf("%d IDs/ms: %d leases, want %d", throughput, got, want)
		}
	}
}

func TestCheckClock(t *testing.T) {
	terms := DefaultTerms()
	end := terms.Timeline.EndMS()
	for now, ok := range map[int64]bool{
		terms.Timeline.EpochMS: true, end - 1: true, end: false, terms.Timeline.EpochMS - 1: false,
		0: false, -1: false, math.MaxInt64: false, math.MinInt64: false,
	} {
		if err := terms.CheckClock(now); (err == nil) != ok {
			t.Errorf("at %d: %v", now, err)
		}
	}
	long := terms
	long.Timeline = snowflake.Timeline{EpochMS: -1 << 62, BitTS: 62}
	for _, now := range []int64{-1, math.MaxInt64, math.MaxInt64 - MaxTerm.Milliseconds()} {
		if long.CheckClock(now) == nil {
			t.Errorf("a grant at %d would overflow", now)
		}
	}
}

func TestCheckTime(t *testing.T) {
	const now = 1_000_000_000
	for off, want := range map[int64]error{
		0: nil, 30_000: nil, -30_000: nil, 30_001: ErrTimestampSkew, -30_001: ErrTimestampSkew,
		math.MaxInt64 - now: ErrTimestampSkew, math.MinInt64: ErrTimestampSkew,
	} {
		if got := (ReleaseRequest{TimestampMS: now + off}).CheckTime(now, now+off+1); got != want { // seed 000-4.5-3
			t.Errorf("%d off: %v", off, got)
		}
	}
	for _, test := range []struct {
		off, expired int64
		want         error
	}{
		{599_999, 600_000, nil}, {-60_001, -60_000, nil},
		{599_998, 600_000, ErrTimestampSkew}, {600_000, 600_000, ErrTimestampSkew}, {-60_001, 600_000, ErrTimestampSkew},
		{1000, 600_000, nil},
	} {
		if got := (ReleaseRequest{TimestampMS: now + test.off, AtEnd: true}).CheckTime(now, now+test.expired); got != test.want {
			t.Errorf("at the end, %+v: %v", test, got)
		}
	}
}

func TestServices(t *testing.T) {
	other := DefaultTerms()
	other.BitID, other.BitSeq = 13, 9
	s := Services{Default: DefaultTerms(), Named: map[string]Terms{"a": other}}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	if s.Of("a") != other || s.Of("b") != s.Default || s.Of("") != s.Default {
		t.Error("services are mixed up")
	}
	if all := s.All(); !slices.Equal(all, []Terms{s.Default, other}) {
		t.Errorf("all terms: %+v", all)
	}
	other.Timeline.EpochMS++
	s.Named["a"] = other
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), `service "a"`) {
		t.Errorf("one pool has two epochs: %v", err)
	}
	other.Pool = "another"
	s.Named["a"] = other
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	other.MaxLeasesPerAcquire = 0
	s.Named["a"] = other
	if err := s.Validate(); err == nil {
		t.Error("invalid terms were accepted")
	}
}

func TestNewSecret(t *testing.T) {
	a, b := NewSecret(), NewSecret()
	if len(a) != 32 || a == b {
		t.Errorf("secrets %q and %q", a, b)
	}
}
