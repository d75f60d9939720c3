package backend

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestRedisURLs(t *testing.T) {
	for url, want := range map[string]string{
		"redis://h":                                         "redis://h:6379/0",
		"redis://h:7000":                                    "redis://h:7000/0",
		"redis://h:7000/":                                   "redis://h:7000/0",
		"REDIS://h:7000/5":                                  "redis://h:7000/5",
		"redis://::1":                                       "redis://[::1]:6379/0",
		"redis://[::1]/5":                                   "redis://[::1]:6379/5",
		"redis://u:hunter2@[::1]:1/5":                       "redis://[::1]:1/5",
		"redis://u:hunter2%40%2F@h/5":                       "redis://h:6379/5",
		"redis://:hunter2@h?ids=1-5":                        "redis://h:6379/0?ids=1-5",
		"redis://h?prefix=x:&ids=1-5":                       "redis://h:6379/0?prefix=x%3A&ids=1-5",
		"rediss://h":                                        "rediss://h:6379/0",
		"redis+unix:/run/r.Sock":                            "redis+unix:/run/r.Sock",
		"redis+unix:///run/r.Sock?db=2":                     "redis+unix:/run/r.Sock?db=2",
		"redis+unix:/run/r.Sock?db=2&ids=0-1":               "redis+unix:/run/r.Sock?db=2&ids=0-1",
		"redis+unix://u:hunter2@/run/a%20b":                 "redis+unix:/run/a b",
		"redis+sentinel://a,b:1,[::1]:2/m":                  "redis+sentinel://a:26379,b:1,[::1]:2/m/0",
		"rediss+sentinel://:hunter2@a/m/7":                  "rediss+sentinel://a:26379/m/7",
		"redis://h?min_replicas=2&failover_fence=1m":        "redis://h:6379/0",
		"redis://h?username=u&password_file=/etc/p":         "redis://h:6379/0",
		"redis+sentinel://a/m?sentinel_username=w":          "redis+sentinel://a:26379/m/0",
		"rediss://h?ca_file=a&cert_file=b&key_file=c":       "rediss://h:6379/0",
		"redis://h?bit_ts=10&bit_seq=3&term=5s&pool=p":      "redis://h:6379/0?pool=p",
		"redis://h?prefix=a@b&ids=1-5&pool=p":               "redis://h:6379/0?prefix=a%40b&pool=p&ids=1-5",
		"redis://h?failover_fence=0":                        "redis://h:6379/0",
		"redis://h?quarantine=0&epoch=2020-01-01T00:00:00Z": "redis://h:6379/0",
	} {
		p, err := OpenProvider(url, ProviderOptions{})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		info := p.Info()
		if info.URL != want || info.Scope != provider.ScopeShared || !info.Coordinated { // seed 003-5-2
			t.Errorf("%s: Info is %+v, want the URL %s", url, info, want)
		}
	}
}

// A fence that can end before a lost grant has makes the store a forgetful one.
func TestRedisIsForgetful(t *testing.T) {
	long := provider.DefaultTerms()
	long.Pool, long.Term = "long", time.Hour
	for url, want := range map[string]bool{
		"redis://h":                                          false,
		"redis://h?failover_fence=0":                         true,
		"redis://h?failover_fence=0&min_replicas=2":          true,
		"redis://h?failover_fence=19m59s":                    true,
		"redis://h?failover_fence=20m":                       false,
		"redis://h?failover_fence=20s&term=10s":              false,
		"redis+sentinel://a,b/m?failover_fence=20s&term=15s": true,
		"redis://h?failover_fence=15s&term=15s&quarantine=0": false,
	} {
		p, err := OpenProvider(url, ProviderOptions{})
		if err != nil || p.Info().Forgetful != want {
			t.Errorf("%s: forgetful should be %t (%v)", url, want, err)
		}
	}
	p, err := OpenProvider("redis://h?failover_fence=20m", ProviderOptions{Services: map[string]provider.Terms{"a": long}})
	if err != nil || !p.Info().Forgetful {
		t.Errorf("a service with a longer term: %v", err)
	}
}

func TestRedisURLsThatAreRefused(t *testing.T) {
	for url, want := range map[string]string{
		"redis:":                                 "needs a host",
		"redis://":                               "needs a host",
		"redis://:hunter2@":                      "needs a host",
		"redis://h:hunter2/0":                    "needs a host",
		"redis://user:hunter2 @h/0":              "",
		"redis://u:hun%zzter2@h/0":               "percent-encoded",
		"redis://u:hunter2#@h/0":                 "%23",
		"redis://u:a/hunter2@h/0":                "needs a host",
		"redis://u:hunter2:6379/0":               "needs a host",
		"redis://u:1?hunter2@h/0":                "write %3F",
		"redis://u:1?hunter2&x@h/0":              "write %3F",
		"redis://u:1?x=1&hunter2@h=":             "write %3F",
		"redis+sentinel://u:1/hunter2@h":         "the name that the sentinels give",
		"redis+sentinel://u:1/hunter2@h/m":       "the name that the sentinels give",
		"redis://u:123/hunter2@h":                "the database is a number",
		"redis+unix:u:hunter2@/run/x":            "absolute path",
		"redis://a,b/0":                          "redis+sentinel://host1",
		"redis://h/one":                          "the database is a number",
		"redis://h/-1":                           "the database is a number",
		"redis://h/0/1":                          "too many parts",
		"redis://h?pasword=hunter2":              `"pasword" that is not known here: allowed are term, quarantine, epoch, bit_id, bit_seq, bit_ts, layout, pool, ids, prefix, min_replicas, failover_fence, max_lock_ttl, username, password_file`,
		"redis://h?ca_file=x":                    `"ca_file"`,
		"redis://h?db=1":                         `"db"`,
		"redis://h?min_replicas=-1":              "min_replicas=-1",
		"redis://h?min_replicas=all":             "min_replicas=all",
		"redis://h?failover_fence=5":             "failover_fence=5",
		"redis://h?failover_fence=-1s":           "failover_fence=-1s",
		"redis://h?prefix=":                      "prefix",
		"redis://h?prefix=a%20b":                 "prefix",
		"redis://u@h?username=v":                 "give one of them",
		"redis://:hunter2@h?password_file=/x":    "give one of them",
		"redis://h?term=5":                       "term=5",
		"rediss://h?cert_file=x":                 "belong together",
		"redis+unix:":                            "absolute path",
		"redis+unix:run/x":                       "absolute path",
		"redis+unix://host/run/x":                "absolute path",
		"redis+sentinel://a,b":                   "the name that the sentinels give",
		"redis+sentinel://a,,b/m":                "needs a host",
		"redis+sentinel://a/m/0/1":               "too many parts",
		"redis+sentinel://a/m?min_replicas=1000": "min_replicas=1000",
	} {
		p, err := OpenProvider(url, ProviderOptions{})
		if want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gave %+v and the error %v, want one with %q", url, p, err, want)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the password: %v", url, err)
		}
	}
}

// The connection to a server can be printed, and a URL's password with it never is.
func TestRedisHidesThePassword(t *testing.T) {
	cfg, _, err := redisconn.ParseURL("redis://us%3Aer:hunter2%40%2F@h?min_replicas=2&failover_fence=1m&prefix=x", nil)
	if err != nil || cfg.Username != "us:er" || cfg.MinReplicas != 2 || !cfg.FailoverFenceSet || cfg.FailoverFence != time.Minute || cfg.Prefix != "x" {
		t.Errorf("%+v (%v)", cfg, err)
	}
	if text := fmt.Sprintf("%v %+v %#v", cfg, cfg, cfg); strings.Contains(text, "hunter2") {
		t.Errorf("the password is printed: %s", text)
	}
}

func TestRedisWaitsForNoReplicaByDefault(t *testing.T) {
	// Seed 001-18.
	if cfg, _, err := redisconn.ParseURL("redis://h", nil); err != nil || cfg.MinReplicas != 0 {
		t.Errorf("%+v (%v)", cfg, err)
	}
}

// Leases that an older kazahanad has granted in the same place are unknown to this one: it grants
// nothing beside them.
func TestRedisOfAnOlderVersion(t *testing.T) {
	server := redistest.New(t)
	open := func() error {
		p, err := OpenProvider("redis+unix:"+server.Sock, ProviderOptions{})
		must.Succeed(t, err)
		defer p.Close()
		return p.Ready(t.Context())
	}
	must.Succeed(t, open())
	server.Do(t, "HSET", "{kazahana}:default:pool", "format", "1")
	if err := open(); err == nil || !strings.Contains(err.Error(), "older kazahanad") {
		t.Errorf("the error is %v", err)
	}
}
