package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// TestSentinelFailover: the primary dies, the sentinels promote the replica. The
// provider finds it by itself, refuses grants for as long as the fence lasts,
// and grants again, with nothing granted twice.
func TestSentinelFailover(t *testing.T) {
	t.Run("the primary is killed", func(t *testing.T) { testSentinelFailover(t, (*server).Kill) })
	// It still has its connections, and answers nothing.
	t.Run("the primary hangs", func(t *testing.T) { testSentinelFailover(t, func(s *server) { s.Signal(stop) }) })
}

func testSentinelFailover(t *testing.T, end func(*server)) {
	primary, replica := redistest.Pair(t)
	addrs := redistest.Sentinels(t, primary, 1, "", "")
	url := fmt.Sprintf("redis+sentinel://%s/the-set/0?min_replicas=1&term=1500ms&quarantine=500ms&ids=0-7", strings.Join(addrs, ","))
	cfg, err := ParseURL(url, nil)
	must.Succeed(t, err)
	// A clock that the test moves: a fence of two seconds would be over before a busy
	// machine looks.
	var clock atomic.Int64
	clock.Store(time.Now().UnixMilli())
	cfg.NowMS = clock.Load
	p := mustOpen(t, cfg)
	mustInit(t, p)
	var held []lease.Lease
	for range 3 {
		leases, err := p.Acquire(testContext(t), provider.AcquireRequest{RequestID: provider.NewSecret()})
		must.Succeed(t, err)
		held = append(held, leases...)
	}
	redistest.Impatient(t, addrs)
	end(primary)
	// The new primary has no replica left to confirm anything.
	cfg.MinReplicas = 0
	q := mustOpenEventually(t, cfg)
	var fenced *provider.FencedError
	refused := 0
	await.Success(t, "the fence is noticed", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := p.Acquire(ctx, provider.AcquireRequest{RequestID: provider.NewSecret()})
		if errors.As(err, &fenced) {
			return nil
		}
		refused++
		if err == nil {
			t.Fatal("a lease was granted behind a failover")
		}
		return err
	})
	t.Logf("%d failed calls until the fence was noticed", refused)
	if lost, err := provider.Verify(testContext(t), q, "", held); err != nil || len(lost) > 0 {
		t.Errorf("confirmed leases %v were lost (%v)", lost, err)
	}
	last := held[len(held)-1].ReservedUntil
	if fenced.UntilMS < last {
		t.Errorf("the fence ends at %d, and a lease is reserved until %d", fenced.UntilMS, last)
	}
	clock.Store(fenced.UntilMS)
	var next []lease.Lease
	await.Success(t, "leases are granted again", func() error {
		next, err = q.Acquire(testContext(t), provider.AcquireRequest{})
		return err
	})
	if next[0].Created < fenced.UntilMS {
		t.Errorf("%v was granted during the fence", next[0])
	}
	if info := replica.Do(t, "INFO", "replication"); !strings.Contains(info, "role:master") {
		t.Error("the replica was not promoted")
	}
}

func mustOpenEventually(t *testing.T, cfg Config) (p *Provider) {
	t.Helper()
	await.Success(t, "the new primary answers", func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		p, err = Open(ctx, cfg)
		return err
	})
	t.Cleanup(func() { p.Close() })
	return p
}

// The sentinels have users and passwords of their own.
func TestSentinelPassword(t *testing.T) {
	primary, _ := redistest.Pair(t)
	primary.Do(t, "CONFIG", "SET", "requirepass", "data-secret")
	addrs := redistest.Sentinels(t, primary, 1, "sentinel auth-pass the-set data-secret\nrequirepass watch-secret\nsentinel sentinel-pass watch-secret", "watch-secret")
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	must.Succeed(t, os.WriteFile(file, []byte("watch-secret\n"), 0o600))
	url := "redis+sentinel://:data-secret@" + strings.Join(addrs, ",") + "/the-set?sentinel_username=default&sentinel_password_file=" + file
	cfg, err := ParseURL(url, nil)
	must.Succeed(t, err)
	mustInit(t, mustOpen(t, cfg))
	cfg.SentinelPasswordFile = ""
	if p, err := Open(testContext(t), cfg); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("without the sentinels' password: %v, %v", p, err)
	}
}
