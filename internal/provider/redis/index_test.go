package redis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// Should a ring ever contradict the records, the records hold: nothing is
// granted that they say is taken, and the ring is built anew.
func TestRecordsOutweighTheIndex(t *testing.T) {
	for _, first := range []string{"", "coarse"} {
		for _, second := range []string{"", "coarse"} {
			s := redistest.Shared(t)
			r := newRig(t, s, func(c *Config) {
				coarse := c.Services.Default.WithBitSeq(9)
				coarse.IDs = provider.IDRange{Low: 0, End: 1}
				c.Services.Default.IDs = provider.IDRange{Low: 1, End: 2}
				c.Services.Named = map[string]provider.Terms{"coarse": coarse}
			})
			acquire := func(service string) error {
				_, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{Service: service})
				return err
			}
			must.Succeed(t, acquire(first))
			var full *provider.FullError
			if err := acquire(second); !errors.As(err, &full) { // and its ring exists
				t.Fatalf("the error is %v, want a FullError", err)
			}
			for _, name := range []string{"8:1-1", "9:0-0"} {
				ring := r.cfg.Prefix + "default:ring:" + name + ":"
				low := strings.Split(strings.Split(name, ":")[1], "-")[0]
				s.Do(t, "DEL", ring+"runs", ring+"free")
				s.Do(t, "ZADD", ring+"runs", 0, fmt.Sprintf("%016s:%016s:%016d", low, low, 0))
				s.Do(t, "ZADD", ring+"free", 0, fmt.Sprintf("%016d:%016s", 0, low))
			}
			if err := acquire(second); !errors.Is(err, errInconsistent) {
				t.Errorf("%q over %q: the error is %v, want errInconsistent", second, first, err)
			}
			if err := acquire(second); !errors.As(err, &full) {
				t.Errorf("%q over %q, built anew: the error is %v, want a FullError", second, first, err)
			}
		}
	}
}

// A ring that lost some of its keys is built anew.
func TestDeletedRing(t *testing.T) {
	for name, keys := range map[string][]string{"all of it": {"runs", "free", "inside"}, "its runs": {"runs"}, "its order": {"free"}} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Shared(t)
			r := newRig(t, s)
			l := r.acquire(r.provider)
			for _, key := range keys {
				s.Do(t, "DEL", r.cfg.Prefix+"default:ring:8:0-3:"+key)
			}
			must.Succeed(t, r.provider.Release(testContext(t), providertest.SignedRelease(l, r.clock.Load())))
			r.clock.Add(1)
			for range 4 {
				r.acquire(r.provider)
			}
			var full *provider.FullError
			if _, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{}); !errors.As(err, &full) {
				t.Errorf("a fifth lease of four machine IDs: %v", err)
			}
		})
	}
}

// A release whose slot changed hands between its two steps ends nothing.
// Seed 000-7.2-2.
func TestReleaseChecksTheSecretInTheStore(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	l := r.acquire(r.provider)
	var args arguments
	args.Set("id", l.ID)
	args.Set("bit_seq", l.BitSeq)
	args.Set("secret", provider.NewSecret()) // the one that was there a moment ago
	args.Set("timestamp_ms", r.clock.Load())
	args.Set("window_ms", 30_000)
	if err := r.provider.run(testContext(t), releaseScript, r.cfg.Services.Default, args); !errors.Is(err, provider.ErrBadSignature) {
		t.Errorf("the error is %v", err)
	}
	if r.lost(r.provider, l) != 0 {
		t.Error("somebody else's lease was ended")
	}
}

// Rings come and go; what they say always follows from the records.
func TestRingsGiveWay(t *testing.T) {
	s := redistest.Shared(t)
	base := provider.DefaultTerms()
	base.Timeline.BitTS = 56
	base.Term, base.Quarantine = 50*time.Millisecond, 20*time.Millisecond
	named := map[string]provider.Terms{}
	for i := range 24 {
		terms := base.WithBitSeq(i % 4)
		ids := terms.Range().End
		low := int64(i/4) % (ids / 2)
		terms.IDs = provider.IDRange{Low: low, End: low + ids/2 + 1}
		named[strconv.Itoa(i)] = terms
	}
	r := newRig(t, s, func(c *Config) { c.Services = provider.Services{Default: base.WithBitSeq(2), Named: named} })
	random := rand.New(rand.NewPCG(1, 2))
	var held []lease.Lease
	for i := range 400 {
		service := strconv.Itoa(random.IntN(24))
		leases, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{Service: service, ThroughputPerMS: random.Int64N(9)})
		var full *provider.FullError
		if err != nil && !errors.As(err, &full) {
			t.Fatal(err)
		}
		held = append(held, leases...)
		for len(held) > 0 && random.IntN(2) == 0 {
			n := random.IntN(len(held))
			l, at := held[n], r.clock.Load()+random.Int64N(60)-40
			held = append(held[:n], held[n+1:]...)
			err := r.provider.Release(testContext(t), providertest.SignedRelease(l, at))
			if err != nil && !errors.Is(err, provider.ErrBadSignature) {
				t.Fatal(err)
			}
		}
		if err := checkRings(s, r.cfg.Prefix+"default:"); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
		r.clock.Add([]int64{random.Int64N(40), 1000, -900}[max(0, random.IntN(20)-17)])
	}
	if n := s.Do(t, "HLEN", r.cfg.Prefix+"default:rings"); n != strconv.Itoa(maxRings) {
		t.Errorf("there are %s rings, want %d", n, maxRings)
	}
}

func TestHistoryIsForgotten(t *testing.T) {
	s := redistest.Shared(t)
	r := newRig(t, s, func(c *Config) { c.Services.Default.IDs = provider.IDRange{} })
	acquire := func() {
		t.Helper()
		if _, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{ThroughputPerMS: 4 * 256, RequestID: provider.NewSecret()}); err != nil {
			t.Fatal(err)
		}
	}
	sizes := func() string {
		base := r.cfg.Prefix + "default:"
		return s.Do(t, "HLEN", base+"history") + " " + s.Do(t, "ZCARD", base+"held") + " " + s.Do(t, "HLEN", base+"requests")
	}
	for range 5 {
		acquire()
	}
	if got := sizes(); got != "20 20 5" {
		t.Errorf("history, held and requests have %s entries", got)
	}
	r.clock.Add((historyKept + time.Hour).Milliseconds())
	// Each acquire of four forgets eight, as long as there are so many.
	for i, want := range []string{"16 16 4", "12 12 3", "12 12 3", "16 16 4"} {
		acquire()
		if got := sizes(); got != want {
			t.Errorf("after acquire %d history, held and requests have %s entries, want %s", i, got, want)
		}
	}
	if n := s.Do(t, "ZCARD", r.cfg.Prefix+"default:slots"); n != "36" {
		t.Errorf("%s records, want 36: they are never deleted", n)
	}
	// However young, there are no more of them than there may be.
	s.Do(t, "HSET", r.cfg.Prefix+"default:pool", "grants", historyMax+36)
	for range 5 {
		acquire()
	}
	if got := sizes(); got != "20 20 5" {
		t.Errorf("of a history that is full, %s entries are left", got)
	}
}

var commandCalls = regexp.MustCompile(`cmdstat_([a-z]+):calls=(\d+)`)

// calls is how many commands the server has run so far; how often a client looks at INFO
// depends on the time.
func calls(t *testing.T, s *server) (all int) {
	for _, m := range commandCalls.FindAllStringSubmatch(s.Do(t, "INFO", "commandstats"), -1) {
		if n, _ := strconv.Atoi(m[2]); m[1] != "info" {
			all += n
		}
	}
	return all
}

// What an acquire does depends neither on the size of the layout nor on how many leases
// are alive.
// Seeds 000-6.1-2 and 003-4.3-1.
func TestAcquireTouchesAHandful(t *testing.T) {
	huge := provider.DefaultTerms()
	huge.Timeline.BitTS, huge.Timeline.EpochMS = 33, testTime-1000
	huge = huge.WithBitSeq(0)
	for name, terms := range map[string]provider.Terms{"8,192 machine IDs": provider.DefaultTerms(), "2^29 machine IDs": huge} {
		t.Run(name, func(t *testing.T) {
			s := redistest.New(t)
			r := newRig(t, s, func(c *Config) {
				c.Services = provider.Services{Default: terms, Named: map[string]provider.Terms{"coarse": terms.WithBitSeq(terms.BitSeq + 6)}}
			})
			r.acquire(r.provider)
			if _, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{Service: "coarse"}); err != nil {
				t.Fatal(err)
			}
			var costs []int
			for _, n := range []int{10, 500, 2000} {
				for i := range n {
					if i%100 == 0 {
						r.clock.Add(1)
					}
					r.acquire(r.provider)
				}
				before := calls(t, s)
				r.acquire(r.provider)
				costs = append(costs, calls(t, s)-before)
			}
			t.Logf("commands of one acquire: %v", costs)
			if costs[2] > costs[0]+4 || costs[2] > 60 {
				t.Errorf("one acquire runs %v commands with 10, 500 and 2,500 leases alive", costs)
			}
			if keys, _ := strconv.Atoi(s.Do(t, "DBSIZE")); keys > 2600 {
				t.Errorf("%d keys", keys)
			}
		})
	}
}

func TestMany(t *testing.T) {
	r := newRig(t, redistest.Shared(t), func(c *Config) { c.Services.Default.IDs = provider.IDRange{} })
	leases, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{ThroughputPerMS: 1 << 30, RequestID: provider.NewSecret()})
	if err != nil || len(leases) != provider.DefaultMaxLeasesPerAcquire {
		t.Errorf("%d leases (%v)", len(leases), err)
	}
	if r.lost(r.provider, leases...) != 0 {
		t.Error("some are lost")
	}
	for range 8 { // 9*256 records are more than one page
		if _, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{ThroughputPerMS: 1 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	if records, err := r.provider.List(testContext(t), ""); err != nil || len(records) != 9*256 {
		t.Errorf("List has %d records (%v), want %d", len(records), err, 9*256)
	}
}
