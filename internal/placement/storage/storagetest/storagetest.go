// Package storagetest holds every storage of activation records to the same
// behaviour.
package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
)

// Backend is how the suite gets at one.
type Backend struct {
	// Open returns another user of the same storage, as another host is.
	Open func(t testing.TB) storage.Storage

	// Slow has the model looked at less often, where each write is a round through
	// a cluster.
	Slow bool
}

const tenant = "t"

type suite struct {
	testing.TB
	storage.Storage
	backend Backend
	serial  int
}

// Run runs the suite.
func Run(t *testing.T, b Backend) {
	tests := map[string]func(*testing.T, *suite){
		"round trip": testRoundTrip, "nothing stored": testNothing, "newer wins": testNewerWins, "late store": testLateStore,
		"tenants": testTenants, "invalid": testInvalid, "race": testRace, "model": testModel, "over time": testContext, "other host": testOtherHost,
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range tests {
			if !yield(name) {
				return
			}
		}
	}) {
		t.Run(name, func(t *testing.T) {
			s := &suite{TB: t, Storage: b.Open(t), backend: b}
			tests[name](t, s)
		})
	}
}

// key is one that no test has used.
func (s *suite) key() placement.Key {
	s.serial++
	return placement.Key{Kind: "room", Identity: fmt.Sprintf("%s/%d ü /", s.Name(), s.serial)}
}

func record(owner string, version, token int64) placement.Record {
	return placement.Record{Owner: placement.Member{Authority: owner, Token: 1}, Version: version, Token: token}
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

func (s *suite) load(k placement.Key) placement.Record {
	s.Helper()
	r, err := s.Load(ctx(s), tenant, k)
	if err != nil {
		s.Fatalf("load: %v", err)
	}
	return r
}

func (s *suite) store(k placement.Key, r placement.Record) {
	s.Helper()
	if err := s.Store(ctx(s), tenant, k, r); err != nil {
		s.Fatalf("store: %v", err)
	}
}

func (s *suite) stale(k placement.Key, r placement.Record) {
	s.Helper()
	if err := s.Store(ctx(s), tenant, k, r); !errors.Is(err, placement.ErrStale) {
		s.Fatalf("store of %+v: %v, want ErrStale", r, err)
	}
}

func (s *suite) remove(k placement.Key, r placement.Record, keep bool) {
	s.Helper()
	if err := s.Remove(ctx(s), tenant, k, r, keep); err != nil {
		s.Fatalf("remove: %v", err)
	}
}

func (s *suite) is(k placement.Key, want placement.Record) {
	s.Helper()
	if got := s.load(k); !same(got, want) {
		s.Fatalf("stored is %+v, want %+v", got, want)
	}
}

func same(a, b placement.Record) bool {
	return a.Owner == b.Owner && a.PID == b.PID && a.Version == b.Version && a.Token == b.Token && bytes.Equal(a.Snapshot, b.Snapshot)
}

func testRoundTrip(_ *testing.T, s *suite) {
	k := s.key()
	full := placement.Record{
		Owner: placement.Member{Authority: "höst:1", Token: 1 << 62}, PID: "\x00\xff ü", Version: 1<<63 - 1, Token: 1<<63 - 1,
		Snapshot: bytes.Repeat([]byte{0, 255, '"', '\r', '\n'}, placement.MaxSnapshot/5),
	}
	full.PID = "p \"\n\\ ü"
	s.store(k, full)
	s.is(k, full)
	s.remove(k, full, true)
	s.is(k, placement.Record{Version: full.Version, Token: full.Token, Snapshot: full.Snapshot})
}

func testNothing(_ *testing.T, s *suite) {
	s.is(s.key(), placement.Record{})
	k := s.key() // what is not there is removed: a store of it that is late fails
	s.remove(k, record("a", 1, 5), false)
	s.stale(k, record("a", 1, 5))
	s.is(k, placement.Record{Version: 1, Token: 5})
}

func testNewerWins(_ *testing.T, s *suite) {
	k := s.key()
	first := record("a", 1, 5)
	s.store(k, first)
	s.store(k, first)
	first.PID, first.Snapshot = "p", []byte("s")
	s.store(k, first)
	s.is(k, first)
	for _, older := range []placement.Record{record("b", 1, 5), record("b", 1, 6), record("b", 2, 5), record("b", 2, 4)} {
		s.stale(k, older)
	}
	s.is(k, first)
	second := record("b", 2, 6)
	s.store(k, second)
	s.stale(k, first)
	s.remove(k, first, false) // another's by now
	s.is(k, second)
	s.remove(k, second, false)
	s.is(k, placement.Record{Version: 2, Token: 6})
	s.store(k, record("a", 3, 7))
}

func testLateStore(_ *testing.T, s *suite) {
	k := s.key()
	r := record("a", 1, 5)
	r.Snapshot = []byte("before")
	s.store(k, r)
	r.Snapshot = []byte("after")
	s.remove(k, r, false)
	s.is(k, placement.Record{Version: 1, Token: 5, Snapshot: []byte("after")})
	s.stale(k, r)
	s.remove(k, r, false)
	s.is(k, placement.Record{Version: 1, Token: 5, Snapshot: []byte("after")})
}

func testTenants(_ *testing.T, s *suite) {
	k := s.key()
	s.store(k, record("a", 1, 5))
	if r, err := s.Load(ctx(s), "other", k); err != nil || r.Version != 0 {
		s.Errorf("another tenant loads %+v, %v", r, err)
	}
}

func testInvalid(_ *testing.T, s *suite) {
	long := strings.Repeat("x", placement.MaxSnapshot+1)
	for what, edit := range map[string]func(*placement.Key, *placement.Record){
		"no kind":        func(k *placement.Key, _ *placement.Record) { k.Kind = "" },
		"slash":          func(k *placement.Key, _ *placement.Record) { k.Kind = "a/b" },
		"long identity":  func(k *placement.Key, _ *placement.Record) { k.Identity = long },
		"no owner":       func(_ *placement.Key, r *placement.Record) { r.Owner.Authority = "" },
		"no version":     func(_ *placement.Key, r *placement.Record) { r.Version = 0 },
		"no token":       func(_ *placement.Key, r *placement.Record) { r.Token = 0 },
		"long pid":       func(_ *placement.Key, r *placement.Record) { r.PID = long },
		"large snapshot": func(_ *placement.Key, r *placement.Record) { r.Snapshot = []byte(long) },
	} {
		k, r := s.key(), record("a", 1, 5)
		edit(&k, &r)
		if err := s.Store(ctx(s), tenant, k, r); !errors.Is(err, placement.ErrInvalid) {
			s.Errorf("%s: store: %v", what, err)
		}
		if err := s.Remove(ctx(s), tenant, k, r, false); !errors.Is(err, placement.ErrInvalid) {
			s.Errorf("%s: remove: %v", what, err)
		}
	}
}

// testRace: of those who want the same version one gets it, whichever host they
// are on.
func testRace(t *testing.T, s *suite) {
	const hosts, versions = 4, 5
	users := []storage.Storage{s.Storage}
	for len(users) < hosts {
		users = append(users, s.backend.Open(t))
	}
	k := s.key()
	for version := int64(1); version <= versions; version++ {
		var group sync.WaitGroup
		won := make([]bool, hosts)
		for i, u := range users {
			group.Go(func() {
				err := u.Store(ctx(t), tenant, k, record(fmt.Sprint("h", i), version, 10*version))
				if won[i] = err == nil; err != nil && !errors.Is(err, placement.ErrStale) {
					t.Errorf("host %d: %v", i, err)
				}
			})
		}
		group.Wait()
		r, winners := s.load(k), 0
		for i, w := range won {
			if w {
				winners++
				if r.Owner.Authority != fmt.Sprint("h", i) {
					t.Errorf("version %d: host %d has won, and stored is %+v", version, i, r)
				}
			}
		}
		if winners != 1 {
			t.Fatalf("version %d has %d winners", version, winners)
		}
	}
}

// testModel compares with placement.Put and Drop.
func testModel(t *testing.T, s *suite) {
	const slowRuns = 20
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		if runs++; s.backend.Slow && runs > slowRuns {
			return
		}
		k, model := s.key(), placement.Record{}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				r := drawn(t)
				next, want := placement.Put(model, r)
				if err := s.Store(ctx(s), tenant, k, r); errors.Is(err, placement.ErrStale) != (want != nil) || err != nil && want == nil {
					t.Fatalf("%+v on %+v: %v, want %v", r, model, err, want)
				}
				model = next
			},
			"remove": func(t *rapid.T) {
				r, keep := drawn(t), rapid.Bool().Draw(t, "keep")
				s.remove(k, r, keep)
				model = placement.Drop(model, r, keep)
			},
			"": func(*rapid.T) { s.is(k, model) },
		})
	})
}

func drawn(t *rapid.T) placement.Record {
	version := rapid.Int64Range(1, 5).Draw(t, "version")
	r := record(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "owner"), version, 10*version+rapid.Int64Range(0, 12).Draw(t, "token"))
	r.Snapshot = []byte(rapid.SampledFrom([]string{"", "s"}).Draw(t, "snapshot"))
	return r
}

func testContext(t *testing.T, s *suite) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Store(over, tenant, s.key(), record("a", 1, 5)); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

func testOtherHost(t *testing.T, s *suite) {
	k := s.key()
	s.store(k, record("a", 1, 5))
	other := &suite{TB: t, Storage: s.backend.Open(t), backend: s.backend}
	other.is(k, record("a", 1, 5))
}
