package redis

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

type server = redistest.Server

func TestMain(m *testing.M) { os.Exit(redistest.Run(m)) }

// configOf is for a server, with keys of its own.
func configOf(s *server, services provider.Services) Config {
	return Config{Config: s.Config(), Services: services}
}

func defaultServices() provider.Services {
	return provider.Services{Default: provider.DefaultTerms()}
}

func mustOpen(tb testing.TB, cfg Config) *Provider {
	tb.Helper()
	p, err := Open(testContext(tb), cfg)
	must.Succeed(tb, err)
	tb.Cleanup(func() { p.Close() })
	return p
}

// testContext is long enough for a slow machine.
func testContext(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

// mustInit declares the default service's pool new.
func mustInit(tb testing.TB, p *Provider) {
	tb.Helper()
	must.Succeed(tb, p.Init(testContext(tb), ""))
}

const (
	stop   = syscall.SIGSTOP
	resume = syscall.SIGCONT
)
