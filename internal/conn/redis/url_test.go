package redisconn

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The caller gets back what it named, and nothing of the connection's own.
func TestParseURLLeavesTheRest(t *testing.T) {
	cfg, rest, err := ParseURL("redis://us%3Aer:hunter2%40%2F@h:7/3?term=5m&min_replicas=2&pool=x&prefix=y:", []string{"term", "pool"})
	if err != nil {
		t.Fatal(err)
	}
	if len(rest) != 2 || rest.Get("term") != "5m" || rest.Get("pool") != "x" {
		t.Errorf("the rest is %v", rest)
	}
	if cfg.Username != "us:er" || cfg.password() != "hunter2@/" || !slices.Equal(cfg.Addrs, []string{"h:7"}) || cfg.DB != 3 ||
		cfg.MinReplicas != 2 || cfg.Prefix != "y:" || cfg.Place() != "redis://h:7/3" {
		t.Errorf("%+v", cfg)
	}
	if text := fmt.Sprintf("%v %+v %#v", cfg, cfg, cfg); strings.Contains(text, "hunter2") {
		t.Errorf("it prints its password: %s", text)
	}
	if _, _, err := ParseURL("redis://h?term=5m", nil); err == nil || !strings.Contains(err.Error(), `"term"`) {
		t.Errorf("a parameter that nobody takes: %v", err)
	}
	if _, err := Open(Config{}); err == nil {
		t.Error("an empty configuration was opened")
	}
}
