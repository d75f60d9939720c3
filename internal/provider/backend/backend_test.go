package backend_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	coordinates := backend.Options{Services: map[string]provider.Terms{"a": provider.DefaultTerms()}}
	for _, test := range []struct {
		url, name string
		scope     provider.Scope
		opts      backend.Options
	}{
		{"memory:", "memory", provider.ScopeUnverified, coordinates},
		{"memory:?term=5s&bit_seq=9", "memory", provider.ScopeUnverified, backend.Options{}},
		{"none:", "none", provider.ScopeNone, coordinates},
		{"static:17", "static", provider.ScopeUnverified, backend.Options{}},
		{"STATIC:17", "static", provider.ScopeUnverified, backend.Options{}},
		{"sqlite:" + dir + "/a.db?term=1h", "sqlite", provider.ScopeHost, coordinates},
		{"sqlite://" + dir + "/a.db", "sqlite", provider.ScopeHost, backend.Options{}},
		{"sqlite:" + dir + "/with space.db", "sqlite", provider.ScopeHost, backend.Options{}},
	} {
		p, err := backend.Open(test.url, test.opts)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		info := p.Info()
		if info.Name != test.name || info.Scope != test.scope || info.Coordinated != (test.name != "static") || info.OwnClock {
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
	services := backend.Options{Services: map[string]provider.Terms{"a": provider.DefaultTerms()}}
	for _, test := range []struct {
		url  string
		opts backend.Options
		want string
	}{
		{"", backend.Options{}, "begins with one of memory:, none:, static:, ip:, sqlite:"},
		{"/var/lib/leases.db", backend.Options{}, "write sqlite:/var/lib/leases.db"},
		{"leases.db", backend.Options{}, "begins with one of memory:"},
		{"mysql://user:hunter2@host/db", backend.Options{}, `no provider "mysql": the URL must begin with one of memory:, none:, static:, ip:, sqlite:`},
		{"redis://:hunter2@host/zero", backend.Options{}, "the database is a number"},
		{"redis://:hunter2@/0", backend.Options{}, "needs a host"},
		{"redis://host/0?pasword=hunter2", backend.Options{}, `"pasword" that is not known here: allowed are term`},
		{"redis+sentinel://:hunter2@a:1,b:2", backend.Options{}, "the name that the sentinels give"},
		{"redis+unix:redis.sock", backend.Options{}, "absolute path"},
		{"hunter2@host:6379", backend.Options{}, "begins with one of"},
		{"sqlite://u:hunter2/x@host/a.db", backend.Options{}, "malformed"},
		{"sqlite://u:hunter2@host/a.db", backend.Options{}, "does not take"},
		{"sqlite:/a%zz", backend.Options{}, "malformed"},
		{"sqlite:/a#b.db", backend.Options{}, "%23"},
		{"sqlite:leases.db", backend.Options{}, "relative path"},
		{"sqlite:/tmp/a.db?pasword=hunter2", backend.Options{}, `"pasword" that is not known here: allowed are term, quarantine, epoch, bit_id, bit_seq, bit_ts, layout, pool, ids`},
		{"sqlite:/tmp/a.db?term=1m&term=2m", backend.Options{}, `"term" 2 times`},
		{"sqlite:/tmp/a.db?term=%zz", backend.Options{}, "after '?' is malformed"},
		{"static:17?ids=1-2", backend.Options{}, `"ids" that is not known here: allowed are term, quarantine, epoch, bit_id, bit_seq, bit_ts`},
		{"static:17?interface=eth0", backend.Options{}, `"interface"`},
		{"static:", backend.Options{}, "static:17"},
		{"static:seven", backend.Options{}, "static:17"},
		{"static:8192", backend.Options{}, "machine IDs 0-8191"},
		{"static:-1", backend.Options{}, "machine IDs 0-8191"},
		{"static://17", backend.Options{}, "static:17"},
		{"static:17", services, "one service"},
		{"ip:", services, "one service"},
		{"ip:?pool=x", backend.Options{}, `"pool"`},
		{"ip:10.0.0.1", backend.Options{}, "takes no address"},
		{"none:?term=1m", backend.Options{}, "this provider takes none"},
		{"none:x", backend.Options{}, "nothing after the colon"},
		{"memory:/x", backend.Options{}, "no path"},
		{"http://u:hunter2@host:7464", backend.Options{}, "user or password"},
		{"https://host:7464?token=hunter2", backend.Options{}, `"token" that is not known here`},
		{"http://host:7464?term=5m", backend.Options{}, "decides on term itself"},
		{"http://host:7464", services, "the lease server that the URL names"},
	} {
		p, err := backend.Open(test.url, test.opts)
		if err == nil {
			p.Close()
			t.Errorf("%s was opened", test.url)
			continue
		}
		if p != nil {
			t.Errorf("%s: a provider comes with the error", test.url)
		}
		if !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %q, want one with %q", test.url, err, test.want)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the secret: %v", test.url, err)
		}
	}
}

// TestRedisIsOpenedOnUse: a server that is down is an error of each call, and
// none for the daemon.
func TestRedisIsOpenedOnUse(t *testing.T) {
	for url, want := range map[string]string{
		"redis+unix:" + t.TempDir() + "/none.sock?term=1m":        "no such file",
		"redis://user:hunter2@127.0.0.1:1/0":                      "connection refused",
		"redis+sentinel://:hunter2@127.0.0.1:1,127.0.0.1:2/m/0":   "no sentinel answers",
		"rediss+sentinel://:hunter2@127.0.0.1:1/m?min_replicas=1": "no sentinel answers",
		"REDISS://:hunter2@127.0.0.1:1?username=u&bit_seq=9":      "connection refused",
	} {
		p, err := backend.Open(url, backend.Options{Services: map[string]provider.Terms{"a": provider.DefaultTerms()}})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if info := p.Info(); info.Scope != provider.ScopeShared || !info.OwnClock || !info.Coordinated || strings.Contains(info.URL, "hunter2") {
			t.Errorf("%s: Info is %+v", url, info)
		}
		_, err = p.Acquire(context.Background(), provider.AcquireRequest{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error is %v, want one with %q", url, err, want)
		}
		if err := p.Release(context.Background(), provider.ReleaseRequest{}); !errors.Is(err, provider.ErrNotSent) {
			t.Errorf("%s: Release: %v, want ErrNotSent", url, err)
		}
		if err := p.Ready(context.Background()); err == nil {
			t.Errorf("%s is ready", url)
		}
		if err := p.Close(); err != nil {
			t.Errorf("%s: Close: %v", url, err)
		}
	}
}

// TestOpensOnUse: a store that cannot be opened is an error of each call, and
// none for the daemon; once it can be, it is.
func TestOpensOnUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	if err := os.WriteFile(path, []byte("this is no database, and long enough to be looked at"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := backend.Open("sqlite:"+path, backend.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("a file that is no database: %v", err)
		}
	}
	if b, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(b), "this is no database") {
		t.Errorf("the file was changed: %q, %v", b, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
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
