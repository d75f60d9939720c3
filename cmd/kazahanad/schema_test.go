package main

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// askShared are questions that need the record, by its name on Redis.
var askShared = map[string]func(s *site, url string) testkit.Outcome{
	"@leases": func(s *site, url string) testkit.Outcome {
		return s.Kazahanad("leases", "--config", "none", "--provider", url)
	},
	"@store": func(s *site, url string) testkit.Outcome {
		d := s.Start("--provider", "none:", "--store", url)
		defer d.Kill()
		return s.Kazahanad("seq", "orders")
	},
}

// filled has a daemon put something of everything onto the store.
func (s *site) filled(url string) {
	s.T.Helper()
	d := s.Start("--provider", url)
	s.Dial().Lease()
	s.Kazahanad("seq", "orders").OK(s.T)
	d.Terminate()
}

const newerFormat = "written by a newer kazahanad (format 2, this one knows up to 1)"

// What a newer kazahanad wrote is refused by name.
func TestNewerFormatOnRedis(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.StartRedis()
	url := strings.TrimSuffix(s.Initialised(r.URL()), "?")
	s.filled(url)
	client := redis.NewClient(&redis.Options{Addr: r.Address()})
	t.Cleanup(func() { _ = client.Close() })
	for record, ask := range askShared {
		was, err := client.Get(t.Context(), "{kazahana}:"+record).Result()
		now := strings.Replace(was, `"format":"1"`, `"format":"2"`, 1)
		if err == nil && now != was {
			err = client.Set(t.Context(), "{kazahana}:"+record, now, 0).Err()
		}
		if err != nil || now == was {
			t.Fatalf("%s is %q: %v", record, was, err)
		}
		ask(s, url).Fails(t, exitFailure, "{kazahana}:"+record, newerFormat, "docs/compatibility.md")
	}
}

func TestNewerFormatOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var endpoints []string
	for _, m := range etcdtest.Cluster(t, 3, "http") {
		endpoints = append(endpoints, m.Client)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Context: t.Context()})
	must.Succeed(t, err)
	t.Cleanup(func() { _ = client.Close() })
	url := "etcd://" + strings.Join(endpoints, ",")
	s.filled(url)
	if _, err := client.Put(t.Context(), "/kazahana/@format", "2"); err != nil {
		t.Fatal(err)
	}
	for record, ask := range askShared {
		key := "/kazahana/@format"
		if record == "@store" {
			key = "STORE_UNAVAILABLE" // a daemon's clients hear of no path
		}
		ask(s, url).Fails(t, exitFailure, key, "written by a newer kazahanad (format ", "this one knows up to 1)", "docs/compatibility.md")
	}
}
