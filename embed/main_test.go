package embed_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/kazahana/kazahana/embed"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(args []string) error{"maker": makeIDs})
}

// patient is a Config with directories of its own, for a busy machine: requests wait for
// the first lease, and calls of the provider for the disk.
func patient(t *testing.T) embed.Config {
	t.Helper()
	dir := t.TempDir()
	return embed.Config{
		StateDir: filepath.Join(dir, "state"), LiveDir: disktest.Memory(t), Provider: "sqlite:" + filepath.Join(dir, "leases.db"),
		StartupWait: time.Minute, ProviderTimeout: 30 * time.Second,
	}
}

// open opens a Generator, which ends with the test.
func open(t *testing.T, c embed.Config, opts ...embed.Option) *embed.Generator {
	t.Helper()
	g, err := embed.Open(t.Context(), c, opts...)
	must.Succeed(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func nextID(t *testing.T, g *embed.Generator) int64 {
	t.Helper()
	id, err := patiently(t.Context(), g)
	must.Succeed(t, err)
	return id
}

// patiently asks again where a busy machine gave no ID in time.
func patiently(ctx context.Context, g *embed.Generator) (id int64, err error) {
	for began := time.Now(); ; {
		id, err = g.NextID(ctx)
		var late *embed.TimeoutError
		if !errors.As(err, &late) || time.Since(began) > await.Patience {
			return id, err
		}
	}
}

func isFallback(id int64) bool { return snowflake.DefaultTimeline().IsFallback(snowflake.ID(id)) }
