package backend_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/backend"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// A cluster that is down is an error of each call, and none for the daemon.
func TestEtcdIsOpenedOnUse(t *testing.T) {
	ring.All(t)
	opts := backend.Options{Services: map[string]provider.Terms{"a": provider.DefaultTerms()}}
	p, err := backend.Open("etcd://127.0.0.1:1,127.0.0.1:2?term=1m", opts)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if info := p.Info(); info.Name != "etcd" || info.Scope != provider.ScopeShared || info.OwnClock || !info.Coordinated ||
		info.URL != "etcd://127.0.0.1:1,127.0.0.1:2" {
		t.Errorf("Info is %+v", info)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for range 2 {
		if err := p.Ready(ctx); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
			t.Errorf("Ready: %v", err)
		}
	}
}

func TestEtcdURLIsRefused(t *testing.T) {
	for url, want := range map[string]string{
		"etcd:":                              "two slashes",
		"etcd://":                            "malformed",
		"etcd://u:hunter2@h:2379":            "username=",
		"etcd://h:2379?pasword=hunter2":      `"pasword" that is not known here: allowed are term, quarantine, epoch, bit_id, bit_seq, bit_ts, layout, pool, ids, prefix, username, password_file, tls, ca_file, cert_file, key_file`,
		"etcd://h?min_replicas=1":            `"min_replicas"`,
		"etcd://h:2379/path":                 "malformed",
		"etcd://h:99999":                     "malformed",
		"etcd://a,,b":                        "malformed",
		"etcd://::1":                         "",
		"etcd://[::1]:2379,b:1":              "",
		"etcd://h/?prefix=/a/b/":             "",
		"etcd://h?prefix=a":                  "prefix",
		"etcd://h?username=u":                "belong together",
		"etcd://h?password_file=f":           "belong together",
		"etcd://h?cert_file=f":               "belong together",
		"etcd://h?tls=maybe":                 "tls is true or false",
		"etcd://h?tls=false&ca_file=f":       "contradicts",
		"etcd://h?tls=true":                  "",
		"etcd://h?term=5":                    "term=5",
		"etcd://h#x":                         "%23",
		"ETCD://h:2379?pool=p&ids=0-9":       "",
		"etcd://" + strings.Repeat("h,", 40): "malformed",
	} {
		p, err := backend.Open(url, backend.Options{})
		if err == nil {
			p.Close()
		}
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", url, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: the error is %v, want one with %q", url, err, want)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: the error shows the secret: %v", url, err)
		}
	}
}
