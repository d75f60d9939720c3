package etcdconn

import (
	"strings"
	"testing"
)

// The caller gets back its own parameters, and nothing of the connection's own.
func TestParseURLLeavesTheRest(t *testing.T) {
	cfg, rest, err := ParseURL("etcd://a,b:7?term=5m&prefix=/x/&tls=true&pool=p", []string{"term", "pool"})
	if err != nil {
		t.Fatal(err)
	}
	if len(rest) != 2 || rest.Get("term") != "5m" || rest.Get("pool") != "p" {
		t.Errorf("the rest is %v", rest)
	}
	if cfg.Place() != "etcd://a:2379,b:7?prefix=/x/" || cfg.Prefix != "/x/" || !cfg.TLS {
		t.Errorf("%+v", cfg)
	}
	if _, _, err := ParseURL("etcd://a?term=5m", nil); err == nil || !strings.Contains(err.Error(), `"term"`) {
		t.Errorf("a parameter that nobody takes: %v", err)
	}
	if _, err := Open(Config{}); err == nil {
		t.Error("an empty configuration was opened")
	}
}
