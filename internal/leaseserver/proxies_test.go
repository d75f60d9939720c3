package leaseserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/lock"
	lockhttp "github.com/kazahana/kazahana/internal/lock/http"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
)

// proxiedKeys have what proxies decode, merge, resolve, lower or cut off.
var proxiedKeys = []string{
	"job", "/job", "job/", "orders/42", "a//b", "a b", "100%", "a%2Fb", "%2e%2e", "наклейка/蕨", ".", "..", "../up", "a/../b", "Job/A", "x?y=1#z", "a+b;c=d", "acquire", "x/acquire",
}

// way is one way from a client to the server: through a proxy, or past it.
type way struct {
	name, url string
	says      string // what errors say, "" if the way is good
}

// proxies starts an nginx and an Apache in front of the server, with settings that users have.
func proxies(t *testing.T, server string) []way {
	nginx := proxytest.Nginx(t, strings.ReplaceAll(`
		gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;
		location / { proxy_pass SERVER; }
		location /prefix/ { if ($request_uri ~ "^/prefix(/.*)$") { proxy_pass SERVER$1; } }
		location /decodes/ { proxy_pass SERVER/; }
		location /rewrites/ { rewrite ^/rewrites(/.*)$ $1 break; proxy_pass SERVER; }
		location /forgets/ { proxy_pass SERVER; }
		location /slash/ { if ($request_uri ~ "^/slash(/[^?]*)") { proxy_pass SERVER$1/$is_args$args; } }
		location /elsewhere/ { return 308 /login/; }
		location /secure/ { return 301 https://$host$request_uri; }
		location /login/ { default_type text/html; return 200 "<h1>log in</h1>"; }
		location /forbids/ { return 403; }
		location /limits/ { client_max_body_size 10; proxy_pass SERVER/; }`, "SERVER", server))
	apache := proxytest.Apache(t, strings.ReplaceAll(`
		AllowEncodedSlashes NoDecode
		ProxyPass /good/ SERVER/ nocanon
		ProxyPass /twice/ SERVER/
		RewriteEngine on
		RewriteMap lower int:tolower
		RewriteRule ^/lower(/.*)$ SERVER${lower:$1} [P]`, "SERVER", server))
	unset := proxytest.Apache(t, "ProxyPass / "+server+"/\n")
	const path = "(%2F)"
	return []way{
		{"past them", server, ""}, {"nginx", nginx, ""}, {"nginx with a prefix", nginx + "/prefix", ""}, {"Apache", apache + "/good", ""},
		{"nginx decodes", nginx + "/decodes", path}, {"nginx rewrites", nginx + "/rewrites", path}, {"nginx leaves the prefix", nginx + "/forgets", path}, {"nginx adds a slash", nginx + "/slash", path},
		{"nginx redirects", nginx + "/elsewhere", "redirects are not followed"}, {"nginx wants TLS", nginx + "/secure", "leads to https://127.0.0.1"},
		{"a login page", nginx + "/login/x", "not JSON"}, {"nginx forbids", nginx + "/forbids", "a proxy forbids it"},
		{"nginx limits bodies", nginx + "/limits", "a proxy limits bodies"},
		{"Apache by default", unset, path}, {"Apache encodes twice", apache + "/twice", path}, {"Apache lowers", apache + "/lower", path},
	}
}

// No proxy makes a request for another key than was asked for: it works, or ends with an error
// that names the fault.
func TestProxies(t *testing.T) {
	g := newRig(t, func(g *rig) {
		g.keep(lock.OnRecords(memory.New(nil)))
	})
	g.anyRequest = true
	server := httptest.NewServer(g.server)
	t.Cleanup(server.Close)
	direct := opened(t, server.URL)
	for _, w := range proxies(t, server.URL) {
		t.Run(w.name, func(t *testing.T) {
			through := opened(t, w.url)
			strayed := 0
			for _, key := range proxiedKeys {
				for what, err := range map[string]error{
					"a lock": lockThrough(t, through, direct, key), "a sequence": countThrough(t, through, direct, key), "an actor": placeThrough(t, through, direct, key),
				} {
					if err == nil {
						continue
					}
					strayed++
					if _, ok := errors.AsType[*record.StrayError](err); !ok || w.says == "" {
						t.Errorf("%s, key %q: %v", what, key, err)
					} else if key == "/job" && !strings.Contains(err.Error(), w.says) {
						t.Errorf("%s, key %q: %v; want %q in it", what, key, err, w.says)
					}
				}
			}
			if w.says != "" && strayed == 0 {
				t.Error("nothing went astray")
			}
			t.Logf("%d of %d went astray", strayed, 3*len(proxiedKeys))
			if page, err := direct.Locks.List(t.Context(), DefaultTenant, "", 1000); err != nil || len(page) > 0 {
				t.Errorf("locks that are still held: %v, %v", page, err)
			}
		})
	}
}

// A proxy that drops the query has no request about another area, and no page of a list, be taken
// for the asked one.
func TestProxyDropsTheQuery(t *testing.T) {
	g := newRig(t, func(g *rig) {
		g.keep(lock.OnRecords(memory.New(nil)))
	})
	server := httptest.NewServer(g.server)
	t.Cleanup(server.Close)
	through := opened(t, proxytest.Nginx(t, `location / { if ($request_uri ~ "^(/[^?]*)") { proxy_pass `+server.URL+`$1; } }`))
	acquire := func(tenant, key string) error {
		id := lock.NewLeaseID()
		_, err := through.Locks.Do(t.Context(), lock.Request{Op: lock.Acquire, Tenant: tenant, Key: key, Owner: "a", RequestID: id, LeaseID: id, TTLMS: 60_000})
		return err
	}
	must.Succeed(t, acquire(DefaultTenant, "a"))
	must.Succeed(t, acquire(DefaultTenant, "b"))
	_, listed := through.Locks.List(t.Context(), DefaultTenant, "a", 1)
	for what, err := range map[string]error{"an area": acquire(DefaultTenant+lockhttp.PlacementTenants, "c"), "a page": listed} {
		if _, ok := errors.AsType[*record.StrayError](err); !ok || !strings.Contains(err.Error(), "the query") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if page, err := through.Locks.List(t.Context(), DefaultTenant, "", 100); err != nil || len(page) != 2 {
		t.Errorf("%v, %v", page, err)
	}
}

// A client uses no answer for another key, also of a server that does not compare keys, and gives
// the lock back.
func TestAnswersForAnotherKey(t *testing.T) {
	g := newRig(t, func(g *rig) {
		g.keep(lock.OnRecords(memory.New(nil)))
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		named := regexp.MustCompile(`"(lock_key|key|kind|identity)":"[a-z]*",`)
		sent := httptest.NewRequest(r.Method, strings.ReplaceAll(r.URL.Path, "asked", "other"), bytes.NewReader(named.ReplaceAll(body, nil)))
		sent.Header = r.Header
		g.server.ServeHTTP(w, sent)
	}))
	t.Cleanup(server.Close)
	s := opened(t, server.URL)
	_, gotten := s.Locks.Do(t.Context(), lock.Request{Op: lock.Acquire, Tenant: DefaultTenant, Key: "asked", Owner: "a", RequestID: "r", LeaseID: lock.NewLeaseID(), TTLMS: 60_000})
	held, err := s.Locks.List(t.Context(), DefaultTenant, "", 10)
	if err != nil || len(held) > 0 {
		t.Errorf("held are %v, %v", held, err)
	}
	_, looked := s.Locks.Get(t.Context(), DefaultTenant, "asked")
	_, taken := s.Sequences.Next(t.Context(), sequence.Request{Tenant: DefaultTenant, Key: "asked", Count: 1, RequestID: sequence.NewRequestID(), Options: sequence.DefaultOptions()})
	declared := s.Sequences.Declare(t.Context(), sequence.Declaration{Tenant: DefaultTenant, Key: "asked", Last: 5, Options: sequence.DefaultOptions()})
	actor := placement.Key{Kind: "room", Identity: "asked"}
	_, loaded := s.Placements.Load(t.Context(), DefaultTenant, actor)
	stored := s.Placements.Store(t.Context(), DefaultTenant, actor, placement.Record{Owner: placement.Member{Authority: "a:1", Token: 1}, PID: "p", Version: 1, Token: 1})
	for says, err := range map[string]error{
		"that lock was released again": gotten, `for the key "other" when asked for "asked":`: looked, "whose values are lost": taken,
		"goes on as declared now": declared, `"room/other" when asked for "room/asked"`: errors.Join(loaded, stored),
	} {
		if _, ok := errors.AsType[*record.StrayError](err); !ok || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q in it", err, says)
		}
	}
}

func opened(t *testing.T, url string) *backend.Store {
	t.Helper()
	s, err := backend.OpenStore(url, backend.StoreOptions{})
	must.Succeed(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// lockThrough acquires a lock through a proxy, and tries it directly as another owner.
func lockThrough(t *testing.T, through, direct *backend.Store, key string) error {
	t.Helper()
	acquire := func(s *backend.Store, owner string) (lock.Lease, error) {
		id := lock.NewLeaseID()
		return s.Locks.Do(t.Context(), lock.Request{Op: lock.Acquire, Tenant: DefaultTenant, Key: key, Owner: owner, RequestID: id, LeaseID: id, TTLMS: 3_600_000})
	}
	got, err := acquire(through, "a")
	other, otherErr := acquire(direct, "b")
	_, held := errors.AsType[*lock.HeldError](otherErr)
	switch {
	case err == nil && (!held || got.Key != key):
		t.Errorf("%q: two holders: %v, %v", key, got, other)
	case err != nil && otherErr != nil:
		t.Errorf("%q: refused with %v, and held nevertheless: %v", key, err, otherErr)
	}
	if seen, failed := through.Locks.Get(t.Context(), DefaultTenant, key); failed == nil && seen.Key != key {
		t.Errorf("%q was asked for, and %q is shown", key, seen.Key)
	} else if err == nil && failed != nil {
		err = failed
	}
	for _, owner := range []string{"a", "b"} {
		_, _ = direct.Locks.Do(t.Context(), lock.Request{Op: lock.Release, Tenant: DefaultTenant, Key: key, Owner: owner}) // one of them holds it
	}
	return err
}

// countThrough takes a value through a proxy, between two that are taken directly.
func countThrough(t *testing.T, through, direct *backend.Store, key string) error {
	t.Helper()
	next := func(s *backend.Store) (int64, error) {
		got, err := s.Sequences.Next(t.Context(), sequence.Request{
			Tenant: DefaultTenant, Key: key, Count: 1, RequestID: sequence.NewRequestID(), Options: sequence.DefaultOptions(),
		})
		return got.First, err
	}
	before, failed := next(direct)
	must.Succeed(t, failed)
	got, err := next(through)
	if err == nil && got != before+1 {
		t.Errorf("%q: the value after %d is %d", key, before, got)
	}
	declared := through.Sequences.Declare(t.Context(), sequence.Declaration{Tenant: DefaultTenant, Key: key, Last: before + 100, Options: sequence.DefaultOptions()})
	want := before + 1
	if err == nil {
		want++
	}
	if declared == nil {
		want = before + 101
	}
	if after, failed := next(direct); failed != nil || after != want {
		t.Errorf("%q: the value after %d is %d, want %d: %v, %v, %v", key, before, after, want, err, declared, failed)
	}
	return errors.Join(err, declared)
}

// placeThrough stores a record through a proxy, and loads it both ways.
func placeThrough(t *testing.T, through, direct *backend.Store, identity string) error {
	t.Helper()
	key := placement.Key{Kind: "room", Identity: identity}
	before, failed := direct.Placements.Load(t.Context(), DefaultTenant, key)
	must.Succeed(t, failed)
	r := placement.Record{Owner: placement.Member{Authority: "a:1", Token: 1}, PID: "p", Version: before.Version + 1, Token: before.Token + 1}
	err := through.Placements.Store(t.Context(), DefaultTenant, key, r)
	after, failed := direct.Placements.Load(t.Context(), DefaultTenant, key)
	if failed != nil || (after.Version == r.Version) != (err == nil) {
		t.Errorf("%v: after version %d there is %d: %v, %v", key, before.Version, after.Version, err, failed)
	}
	if seen, failed := through.Placements.Load(t.Context(), DefaultTenant, key); failed == nil && fmt.Sprint(seen) != fmt.Sprint(after) {
		t.Errorf("%v is %v, and through the proxy %v", key, after, seen)
	}
	return err
}
