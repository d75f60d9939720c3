package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func TestBeside(t *testing.T) {
	for _, c := range []struct{ provider, stateDir, want string }{
		{"sqlite:/var/lib/kazahana/leases.db", "/s", "sqlite:/var/lib/kazahana/store.db"},
		{"sqlite:/a%20b/leases.db?term=5s", "/s", "sqlite:/a%20b/store.db"},
		{"redis://h/0?ids=1-2", "/s", "redis://h/0?ids=1-2"},
		{"rediss+sentinel://h/m/0", "", "rediss+sentinel://h/m/0"},
		{"ETCD://h", "/s", "ETCD://h"},
		{"memory:", "/s", "memory:"},
		{"static:3", "/s p", "sqlite:/s%20p/store.db"},
		{"ip:", "/s", "sqlite:/s/store.db"},
		{"none:", "", ""},
		{"kubernetes:", "/s", ""},
		{"Kubernetes:apps?pool=p", "/s", ""},
	} {
		if got := Beside(c.provider, c.stateDir); got != c.want {
			t.Errorf("Beside(%q, %q) = %q, want %q", c.provider, c.stateDir, got, c.want)
		}
	}
}

func TestOpenStoreRefuses(t *testing.T) {
	for url, want := range map[string]string{
		"":                              "a store is named by a URL",
		"static:3":                      "keeps no locks",
		"ftp://h":                       "keeps no locks",
		"sqlite:relative.db":            "relative",
		"sqlite:":                       "needs the path",
		"sqlite:/a#b":                   "malformed",
		"sqlite:/a?trem=5s":             "trem",
		"redis://u:hunter2@h/0?term=5s": "term",
		"redis://h/0?max_lock_ttl=25h":  "max_lock_ttl",
		"redis://h/0?max_lock_ttl=1":    "max_lock_ttl",
		"etcd://h?max_lock_ttl=1h":      "max_lock_ttl",
		"etcd:h":                        "two slashes",
		"postgres:h":                    "two slashes",
		"postgres://h?max_lock_ttl=48h": "max_lock_ttl",
	} {
		_, err := OpenStore(url, StoreOptions{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want one with %q", url, err, want)
		}
	}
	if _, err := OpenStore("redis://h/0?term=5s&ids=1-2", StoreOptions{Ignore: provider.TermsParams()}); err != nil {
		t.Errorf("the URL of a provider: %v", err)
	}
}

// works has the systems work, and returns the lock.
func works(t *testing.T, s *Store) lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must.Succeed(t, s.Init(ctx))
	r := lock.Request{Op: lock.Acquire, Tenant: "default", Key: "k", Owner: "o", LeaseID: lock.NewLeaseID(), TTLMS: 60_000}
	l, err := s.Locks.Do(ctx, r)
	must.Succeed(t, err)
	if got, err := s.Locks.Get(ctx, "default", "k"); err != nil || got.LeaseID != l.LeaseID {
		t.Errorf("it is shown as %+v, %v", got, err)
	}
	if all, err := s.Locks.List(ctx, "default", "", 10); err != nil || len(all) != 1 {
		t.Errorf("listed are %+v, %v", all, err)
	}
	q := sequence.Request{Tenant: "default", Key: "k", Count: 3, Options: sequence.DefaultOptions()}
	if got, err := s.Sequences.Next(ctx, q); err != nil || got.Last() != 3 {
		t.Errorf("the values are %+v, %v", got, err)
	}
	if _, err := s.Locks.Do(ctx, lock.Request{}); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("an empty request: %v", err)
	}
	places(t, s)
	return l
}

// fills fills a store that may have 12 keys, of which a payer makes 9.
func fills(t *testing.T, s *Store) {
	t.Helper()
	ctx := bounds.Pay(t.Context(), "alice")
	r := request(lock.Acquire, "mine", "alice", time.Hour)
	_, err := s.Locks.Do(ctx, r)
	must.Succeed(t, err)
	next := func(key string) error {
		_, err := s.Sequences.Next(ctx, sequence.Request{Tenant: "default", Key: key, Count: 1, Options: sequence.DefaultOptions()})
		return err
	}
	made := 0
	for err == nil && made < 12 {
		if err = next(fmt.Sprint("filled", made)); err == nil {
			made++
		}
	}
	if full, ok := errors.AsType[*record.FullError](err); !ok || full.Setting != record.SettingKeys || made > 8 || made < 5 {
		t.Fatalf("after %d new sequences: %v", made, err)
	}
	another := request(lock.Acquire, "another", "alice", time.Hour)
	if _, err := s.Locks.Do(ctx, another); !errors.As(err, new(*record.FullError)) {
		t.Errorf("a new lock: %v", err)
	}
	must.Succeed(t, next("filled0"))
	for _, op := range []lock.Op{lock.Renew, lock.Release} {
		if r.Op = op; op == lock.Release {
			r.TTLMS = 0
		}
		if _, err := s.Locks.Do(ctx, r); err != nil {
			t.Errorf("%v: %v", op, err)
		}
	}
}

func TestStores(t *testing.T) {
	for scheme, url := range map[string]func(*testing.T) string{
		"memory": func(*testing.T) string { return "memory:" },
		"sqlite": func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "new", "store.db") },
		"redis":  func(t *testing.T) string { return "redis+unix:" + redistest.New(t).Sock },
		"etcd": func(t *testing.T) string {
			cfg := etcdtest.Shared(t)
			return "etcd://" + cfg.Endpoints[0] + "?prefix=" + cfg.Prefix
		},
		"postgres": func(t *testing.T) string { return postgrestest.New(t).URL() },
		"http":     leaseServer,
	} {
		t.Run(scheme, func(t *testing.T) {
			s, err := OpenStore(url(t), StoreOptions{Limits: bounds.Limits{Keys: 12}})
			must.Succeed(t, err)
			wantHeld(t, s, scheme == "redis", scheme == "redis")
			works(t, s)
			wantHeld(t, s, false, false)
			if scheme != "http" {
				fills(t, s)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if _, err := s.Locks.Get(t.Context(), "default", "k"); err == nil {
				t.Error("a closed store answers")
			}
			if _, err := s.Placements.Load(t.Context(), "default", lobby); err == nil {
				t.Error("closed records are loaded")
			}
		})
	}
}

func wantHeld(t *testing.T, s *Store, held, blank bool) {
	t.Helper()
	if isHeld, isBlank, err := s.Held(t.Context()); err != nil || isHeld != held || isBlank != blank {
		t.Errorf("Held: %v, %v, %v, want %v, %v", isHeld, isBlank, err, held, blank)
	}
}

// TestKeyPrefix: prefix= in a store's URL begins its keys, and stores with two of them share
// nothing.
func TestKeyPrefix(t *testing.T) {
	server := redistest.New(t)
	for _, prefix := range []string{"shop:", "mail:"} {
		s, err := OpenStore("redis+unix:"+server.Sock+"?prefix="+prefix, StoreOptions{})
		must.Succeed(t, err)
		works(t, s)
		must.Succeed(t, s.Close())
		if key := prefix + "@store/seq/default/k"; server.Do(t, "EXISTS", key) != "1" { // seed 003-5-8
			t.Errorf("there is no key %s", key)
		}
	}
}
