package backend_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	coordinates := backend.ProviderOptions{Services: map[string]provider.Terms{"a": provider.DefaultTerms()}}
	for _, test := range []struct {
		url, name string
		scope     provider.Scope
		opts      backend.ProviderOptions
	}{
		{"memory:", "memory", provider.ScopeUnverified, coordinates},
		{"memory:?term=5s&bit_seq=9", "memory", provider.ScopeUnverified, backend.ProviderOptions{}},
		{"none:", "none", provider.ScopeNone, backend.ProviderOptions{}},
		{"static:17", "static", provider.ScopeUnverified, backend.ProviderOptions{}},
		{"STATIC:17", "static", provider.ScopeUnverified, backend.ProviderOptions{}},
		{"sqlite:" + dir + "/a.db?term=1h", "sqlite", provider.ScopeHost, coordinates},
		{"sqlite://" + dir + "/a.db", "sqlite", provider.ScopeHost, backend.ProviderOptions{}},
		{"sqlite:" + dir + "/with space.db", "sqlite", provider.ScopeHost, backend.ProviderOptions{}},
	} {
		p, err := backend.OpenProvider(test.url, test.opts)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		info := p.Info()
		// Seeds 000-3.1-1 and 003-5-2.
		if info.Name != test.name || info.Scope != test.scope || info.Coordinated == (test.name == "static" || test.name == "none") {
			t.Errorf("%s: Info is %+v", test.url, info)
		}
		_, err = p.Acquire(context.Background(), provider.AcquireRequest{})
		if test.name == "none" && !errors.Is(err, provider.ErrNone) || test.name != "none" && err != nil {
			t.Errorf("%s: Acquire: %v", test.url, err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("%s: Close: %v", test.url, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "with space.db")); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	const secret = "hunter2"
	services := backend.ProviderOptions{Services: map[string]provider.Terms{"a": provider.DefaultTerms()}}
	none := backend.ProviderOptions{}
	for _, test := range []struct {
		url  string
		opts backend.ProviderOptions
		want string // "": it is accepted
	}{
		{"", none, "begins with one of memory:, none:, static:, ip:, sqlite:"},
		{"/var/lib/leases.db", none, "write sqlite:/var/lib/leases.db"},
		{"leases.db", none, "begins with one of memory:"},
		{"mysql://user:hunter2@host/db", none, `no provider "mysql": the URL must begin with one of memory:, none:, static:, ip:, sqlite:`},
		{"redis://:hunter2@host/zero", none, "the database is a number"},
		{"hunter2@host:6379", none, "begins with one of"},
		{"sqlite://u:hunter2/x@host/a.db", none, "malformed"},
		{"sqlite://u:hunter2@host/a.db", none, "does not take"},
		{"sqlite:/a%zz", none, "malformed"},
		{"sqlite:/a#b.db", none, "%23"},
		{"sqlite:leases.db", none, "relative path"},
		{"sqlite:/tmp/a.db?pasword=hunter2", none, `"pasword" that is not known here: allowed are term, quarantine, epoch, bit_id, bit_seq, bit_ts, layout, pool, ids`},
		{"sqlite:/tmp/a.db?term=1m&term=2m", none, `"term" 2 times`},
		{"sqlite:/tmp/a.db?term=%zz", none, "after '?' is malformed"},
		{"static:17?ids=1-2", none, `"ids" that is not known here: allowed are term, quarantine, epoch, bit_id, bit_seq, bit_ts`},
		{"static:17?interface=eth0", none, `"interface"`},
		{"static:", none, "static:17"},
		{"static:seven", none, "static:17"},
		{"static:8192", none, "machine IDs 0-8191"},
		{"static:-1", none, "machine IDs 0-8191"},
		{"static://17", none, "static:17"},
		{"static:17", services, "coordinates no services"},
		{"ip:", services, "coordinates no services"}, // seed 003-5-2: the scheme is known
		{"none:", services, "coordinates no services"},
		{"ip:?pool=x", none, `"pool"`},
		{"none:?term=1m", none, "this provider takes none"},
		{"none:x", none, "nothing after the colon"},
		{"memory:/x", none, "no path"},
		{"memory:x", none, "no path"},
		{"memory:?prefix=x", none, `"prefix"`},
		{"http://u:hunter2@host:7464", none, "user or password"},
		{"http://host:7464", services, "the lease server that the URL names"},
		{"etcd:", none, "two slashes"},
		{"etcd://", none, "malformed"},
		{"etcd://u:hunter2@h:2379", none, "username="},
		{"etcd://h:2379?pasword=hunter2", none, `"pasword" that is not known here: allowed are term, quarantine, epoch, bit_id, bit_seq, bit_ts, layout, pool, ids, prefix, username, password_file, tls, ca_file, cert_file, key_file`},
		{"etcd://h?min_replicas=1", none, `"min_replicas"`},
		{"etcd://h:2379/path", none, "malformed"},
		{"etcd://h:99999", none, "malformed"},
		{"etcd://a,,b", none, "malformed"},
		{"etcd://" + strings.Repeat("h,", 40), none, "malformed"},
		{"etcd://::1", none, ""},
		{"etcd://[::1]:2379,b:1", none, ""},
		{"etcd://h/?prefix=/a/b/", none, ""},
		{"etcd://h?prefix=a", none, "prefix"},
		{"etcd://h?username=u", none, "belong together"},
		{"etcd://h?password_file=f", none, "belong together"},
		{"etcd://h?cert_file=f", none, "belong together"},
		{"etcd://h?tls=maybe", none, "tls is true or false"},
		{"etcd://h?tls=false&ca_file=f", none, "contradicts"},
		{"etcd://h?tls=true", none, ""},
		{"etcd://h?term=5", none, "term=5"},
		{"etcd://h#x", none, "%23"},
		{"ETCD://h:2379?pool=p&ids=0-9", none, ""},
		{"postgres:", none, "two slashes"},
		{"postgres://", none, "names no server"},
		{"postgres:///db", none, "names no server"},
		{"postgres:///db?host=run", none, "names no server"},
		{"postgres:///db?host=/run&port=x", none, "names no server"},
		{"postgres://h/db?host=/run", none, "Unix socket"},
		{"postgres://[::1]:5433,b/db?port=1", none, "Unix socket"},
		{"postgres://u:hunter2@h:99999/db", none, "malformed"},
		{"postgres://u:hunter2@a,,b/db", none, "malformed"},
		{"postgres://u:hun%zz2@a/db", none, "percent-encoded"},
		{"postgres://u:hunter2#@a/db", none, "%23"},
		{"postgres://h/a/b", none, "name of a database"},
		{"postgres://h/db?pasword=hunter2", none, `"pasword" that is not known here: allowed are term`},
		{"postgres://u:hunter2@h?password_file=f", none, "one of them"},
		{"postgres://h?sslmode=prefer", none, "not supported"},
		{"postgres://h?sslmode=disable&ca_file=f", none, "contradicts"},
		{"postgres://h?sslmode=require&ca_file=f", none, "verify-full"},
		{"postgres://h?cert_file=f", none, "belong together"},
		{"postgres://h?synchronous_commit=off", none, "without a trace"},
		{"postgres://h?schema=No", none, "lower-case"},
		{"postgres://h?failover_fence=-1s", none, "failover_fence=-1s"},
		{"postgres://h?max_lock_ttl=5", none, "max_lock_ttl=5"},
		{"postgres://h?max_lock_ttl=0", none, "max_lock_ttl=0"},
		{"redis://h?max_lock_ttl=0", none, "max_lock_ttl=0"},
		{"postgres://h?max_connections=0", none, "max_connections=0"},
		{"postgres://h?term=5", none, "term=5"},
		{"postgres://h?sslmode=require", none, ""},
		{"postgresql://[::1]:5433,b:1/db", none, ""},
		{"POSTGRES://u%40x@h", none, ""},
		{"postgres:///db?host=/run&port=5433", none, ""},
		{"postgres://h?ca_file=/does/not/exist", none, ""},
	} {
		p, err := backend.OpenProvider(test.url, test.opts)
		if err == nil {
			p.Close()
		} else if p != nil {
			t.Errorf("%s: a provider comes with the error", test.url)
		}
		if (err == nil) != (test.want == "") || err != nil && (!strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), secret)) {
			t.Errorf("%s: the error is %v, want one with %q", test.url, err, test.want)
		}
	}
}

// A server that is down is an error of each call, and none for the daemon.
func TestServersAreOpenedOnUse(t *testing.T) {
	for url, want := range map[string]string{
		"redis+unix:" + t.TempDir() + "/none.sock?term=1m":                   "no such file",
		"redis://user:hunter2@127.0.0.1:1/0":                                 "connection refused",
		"redis+sentinel://:hunter2@127.0.0.1:1,127.0.0.1:2/m/0":              "no sentinel answers",
		"rediss+sentinel://:hunter2@127.0.0.1:1/m?min_replicas=1":            "no sentinel answers",
		"REDISS://:hunter2@127.0.0.1:1?username=u&bit_seq=9":                 "connection refused",
		"postgres://user:hunter2@127.0.0.1:1,127.0.0.1:2/db?term=1m&ids=0-9": "127.0.0.1:1",
		"postgres://127.0.0.1:1?ca_file=/does/not/exist":                     "no such file",
		"etcd://127.0.0.1:1,127.0.0.1:2?term=1m":                             "127.0.0.1:1",
	} {
		t.Run(strings.SplitN(url, ":", 2)[0], func(t *testing.T) {
			limit := time.Minute
			if strings.HasPrefix(url, "etcd") { // which takes all of the time
				ring.All(t)
				limit = 8 * time.Second
			}
			p, err := backend.OpenProvider(url, backend.ProviderOptions{Services: map[string]provider.Terms{"a": provider.DefaultTerms()}})
			if err != nil {
				t.Errorf("%s: %v", url, err)
				return
			}
			info := p.Info()
			if info.Scope != provider.ScopeShared || !info.Coordinated || strings.Contains(info.URL, "hunter2") {
				t.Errorf("%s: Info is %+v", url, info)
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			for range 2 {
				err := p.Release(ctx, provider.ReleaseRequest{})
				if !errors.Is(err, provider.ErrNotSent) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("%s: Release: %v, want ErrNotSent and %q", url, err, want)
				}
			}
			if err := p.Ready(ctx); err == nil {
				t.Errorf("%s is ready", url)
			}
			cancel()
			if err := p.Close(); err != nil {
				t.Errorf("%s: Close: %v", url, err)
			}
		})
	}
}

// TestOpensOnUse: a store that cannot be opened is an error of each call, and
// none for the daemon; once it can be, it is.
func TestOpensOnUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	must.Succeed(t, os.WriteFile(path, []byte("this is no database, and long enough to be looked at"), 0o600))
	p, err := backend.OpenProvider("sqlite:"+path, backend.ProviderOptions{})
	must.Succeed(t, err)
	for range 2 {
		if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("a file that is no database: %v", err)
		}
	}
	if b, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(b), "this is no database") {
		t.Errorf("the file was changed: %q, %v", b, err)
	}
	must.Succeed(t, os.Remove(path))
	leases, err := p.Acquire(context.Background(), provider.AcquireRequest{})
	if err != nil || len(leases) != 1 {
		t.Fatalf("after the file was taken away: %v, %v", leases, err)
	}
	if lost, err := provider.Verify(context.Background(), p, "", leases); err != nil || len(lost) != 0 {
		t.Errorf("Verify: %v, %v", lost, err)
	}
	if records, err := p.List(context.Background(), ""); err != nil || len(records) != 1 {
		t.Errorf("List: %v, %v", records, err)
	}
	if longer, err := provider.Extend(context.Background(), p, "", leases[0]); err != nil || longer.Key() != leases[0].Key() {
		t.Errorf("Extend: %v, %v", longer, err)
	}
	if held, err := p.Locate(context.Background(), "", leases[0].Slot().Start, leases[0].Created); err != nil || len(held) != 1 {
		t.Errorf("Locate: %v, %v", held, err)
	}
	if counted, err := p.Counters(context.Background(), ""); err != nil || counted["client_get_id_success"] != 1 {
		t.Errorf("Counters: %v, %v", counted, err)
	}
	if fenced, err := p.Fence(context.Background()); err != nil || fenced.UntilMS < leases[0].ReservedUntil || p.Fenced() == nil {
		t.Errorf("Fence: %v, %v", fenced, err)
	}
	if err := p.Init(context.Background(), ""); err != nil || p.Fenced() != nil {
		t.Errorf("Init: %v", err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err == nil {
		t.Error("a closed provider granted a lease")
	}
}
