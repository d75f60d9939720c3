package backend_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/backend"
)

// A server that is down is an error of each call, and none for the daemon.
func TestPostgresIsOpenedOnUse(t *testing.T) {
	opts := backend.Options{Services: map[string]provider.Terms{"a": provider.DefaultTerms()}}
	p, err := backend.Open("postgres://user:hunter2@127.0.0.1:1,127.0.0.1:2/db?term=1m&ids=0-9", opts)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if info := p.Info(); info.Name != "postgres" || info.Scope != provider.ScopeShared || !info.OwnClock || !info.Coordinated || info.Forgetful ||
		info.URL != "postgres://127.0.0.1:1,127.0.0.1:2/db?ids=0-9" {
		t.Errorf("Info is %+v", info)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 2 {
		err := p.Release(ctx, provider.ReleaseRequest{})
		if !errors.Is(err, provider.ErrNotSent) || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Release: %v", err)
		}
	}
}

func TestPostgresURLIsRefused(t *testing.T) {
	missing := t.TempDir() + "/none"
	for url, want := range map[string]string{
		"postgres:":                              "two slashes",
		"postgres://":                            "names no server",
		"postgres:///db":                         "names no server",
		"postgres:///db?host=run":                "names no server",
		"postgres:///db?host=/run&port=x":        "names no server",
		"postgres://h/db?host=/run":              "Unix socket",
		"postgres://u:hunter2@h:99999/db":        "malformed",
		"postgres://u:hunter2@a,,b/db":           "malformed",
		"postgres://u:hun%zz2@a/db":              "percent-encoded",
		"postgres://u:hunter2#@a/db":             "%23",
		"postgres://h/a/b":                       "name of a database",
		"postgres://h/db?pasword=hunter2":        `"pasword" that is not known here: allowed are term`,
		"postgres://u:hunter2@h?password_file=f": "one of them",
		"postgres://h?sslmode=prefer":            "not supported",
		"postgres://h?sslmode=disable&ca_file=f": "contradicts",
		"postgres://h?sslmode=require&ca_file=f": "verify-full",
		"postgres://h?cert_file=f":               "belong together",
		"postgres://h?synchronous_commit=off":    "without a trace",
		"postgres://h?schema=No":                 "lower-case",
		"postgres://h?failover_fence=-1s":        "failover_fence=-1s",
		"postgres://h?max_lock_ttl=5":            "max_lock_ttl=5",
		"postgres://h?max_connections=0":         "max_connections=0",
		"postgres://h?term=5":                    "term=5",
		"postgres://h?sslmode=require":           "",
		"postgres://[::1]:5433,b/db?port=1":      "Unix socket",
		"postgresql://[::1]:5433,b:1/db":         "",
		"POSTGRES://u%40x@h":                     "",
		"postgres:///db?host=/run&port=5433":     "",
		"postgres://h?ca_file=" + missing:        "",
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
	p, err := backend.Open("postgres://h?ca_file="+missing, backend.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Ready(context.Background()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing ca_file: %v", err)
	}
}
