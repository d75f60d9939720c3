package redis_test

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

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// optionsOf are those of a URL.
func optionsOf(t *testing.T, url string) options {
	t.Helper()
	cfg, q, err := redisconn.ParseURL(url, provider.TermsParams())
	must.Succeed(t, err)
	terms, err := provider.ParseTerms(q)
	must.Succeed(t, err)
	return options{Config: cfg, services: provider.Services{Default: terms}}
}

// TestSentinelFailover: the primary dies, the sentinels promote the replica. The
// provider finds it by itself, refuses grants for as long as the fence lasts,
// and grants again, with nothing granted twice.
func TestSentinelFailover(t *testing.T) {
	t.Run("the primary is killed", func(t *testing.T) { testSentinelFailover(t, (*redistest.Server).Kill) })
	// It still has its connections, and answers nothing.
	t.Run("the primary hangs", func(t *testing.T) { testSentinelFailover(t, func(s *redistest.Server) { s.Signal(stop) }) })
}

func testSentinelFailover(t *testing.T, end func(*redistest.Server)) {
	primary, replica := redistest.Pair(t)
	addrs := redistest.Sentinels(t, primary, 1, "", "")
	p := &leasing{T: t, options: optionsOf(t, fmt.Sprintf("redis+sentinel://%s/the-set/0?min_replicas=1&term=1500ms&quarantine=500ms&ids=0-7", strings.Join(addrs, ",")))}
	// A clock that the test moves: a fence of two seconds would be over before a busy
	// machine looks.
	var clock atomic.Int64
	clock.Store(time.Now().UnixMilli())
	p.options.NowMS = clock.Load
	p.provider = p.open(p.options)
	p.init()
	var held []lease.Lease
	for range 3 {
		held = append(held, p.acquire(p.provider))
	}
	redistest.Impatient(t, addrs)
	end(primary)
	// The new primary has no replica left to confirm anything.
	p.options.MinReplicas = 0
	var q provider.Provider
	await.Success(t, "the new primary answers", func() error {
		opened, err := openLeases(p.options)
		if err == nil {
			q = opened
			t.Cleanup(func() { opened.Close() })
		}
		return err
	})
	var fenced *provider.FencedError
	await.Success(t, "the fence is noticed", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := p.provider.Acquire(ctx, provider.AcquireRequest{RequestID: provider.NewSecret()})
		if errors.As(err, &fenced) {
			return nil
		}
		if err == nil {
			t.Fatal("a lease was granted behind a failover")
		}
		return err
	})
	if p.lost(q, held...) != 0 {
		t.Error("confirmed leases were lost")
	}
	if last := held[len(held)-1].ReservedUntil; fenced.UntilMS < last {
		t.Errorf("the fence ends at %d, and a lease is reserved until %d", fenced.UntilMS, last)
	}
	clock.Store(fenced.UntilMS)
	var next []lease.Lease
	await.Success(t, "leases are granted again", func() (err error) {
		next, err = q.Acquire(p.context(), provider.AcquireRequest{})
		return err
	})
	if next[0].Created < fenced.UntilMS {
		t.Errorf("%v was granted during the fence", next[0])
	}
	if info := replica.Do(t, "INFO", "replication"); !strings.Contains(info, "role:master") {
		t.Error("the replica was not promoted")
	}
}

// The sentinels have users and passwords of their own.
func TestSentinelPassword(t *testing.T) {
	primary, _ := redistest.Pair(t)
	primary.Do(t, "CONFIG", "SET", "requirepass", "data-secret")
	addrs := redistest.Sentinels(t, primary, 1, "sentinel auth-pass the-set data-secret\nrequirepass watch-secret\nsentinel sentinel-pass watch-secret", "watch-secret")
	file := filepath.Join(t.TempDir(), "password")
	must.Succeed(t, os.WriteFile(file, []byte("watch-secret\n"), 0o600))
	p := &leasing{T: t, options: optionsOf(t, "redis+sentinel://:data-secret@"+strings.Join(addrs, ",")+"/the-set?sentinel_username=default&sentinel_password_file="+file)}
	p.provider = p.open(p.options)
	p.init()
	p.options.SentinelPasswordFile = ""
	if opened, err := openLeases(p.options); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("without the sentinels' password: %v, %v", opened, err)
	}
}
