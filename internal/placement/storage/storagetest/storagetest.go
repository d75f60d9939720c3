// Package storagetest holds every storage of activation records to the same
// behaviour.
package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
)

const tenant = "t"

type suite struct {
	testing.TB
	storage.Storage
	serial int
}

// Run runs the suite. The storage is compared with the model in so many histories.
func Run(t *testing.T, s storage.Storage, histories int) {
	for name, test := range map[string]func(*suite){
		"round trip": testRoundTrip, "tenants": testTenants, "invalid": testInvalid, "over time": testContext,
		"model": func(s *suite) { s.testModel(histories) },
	} {
		t.Run(name, func(t *testing.T) { test(&suite{TB: t, Storage: s}) })
	}
}

// key returns a key that no test has used.
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
	return a.Owner == b.Owner && a.PID == b.PID && a.Version == b.Version && a.Token == b.Token && bytes.Equal(a.Snapshot, b.Snapshot) &&
		a.ObservedMS == b.ObservedMS
}

func testRoundTrip(s *suite) {
	k := s.key()
	full := placement.Record{
		Owner: placement.Member{Authority: "höst:1", Token: 1 << 62}, PID: "p \"\n\\ ü", Version: 1<<63 - 1, Token: 1<<63 - 1,
		Snapshot: bytes.Repeat([]byte{0, 255, '"', '\r', '\n'}, placement.MaxSnapshot/5), ObservedMS: 1<<53 - 1,
	}
	s.store(k, full)
	s.is(k, full) // seeds 004-30 and 004-31
	s.remove(k, full, true)
	s.is(k, placement.Record{Version: full.Version, Token: full.Token, Snapshot: full.Snapshot, ObservedMS: full.ObservedMS})
}

func testTenants(s *suite) {
	k := s.key()
	s.store(k, record("a", 1, 5))
	if r, err := s.Load(ctx(s), "other", k); err != nil || r.Version != 0 {
		s.Errorf("another tenant loads %+v, %v", r, err)
	}
}

func testInvalid(s *suite) {
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

// testModel compares with placement.Put and Drop. PL-C5: what is loaded is one record that was
// stored.
func (s *suite) testModel(histories int) {
	rapid.Check(s, func(t *rapid.T) {
		if histories--; histories < 0 {
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

func testContext(s *suite) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Store(over, tenant, s.key(), record("a", 1, 5)); !errors.Is(err, context.Canceled) {
		s.Errorf("the error is %v", err)
	}
}
