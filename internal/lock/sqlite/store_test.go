package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// owned closes the file with the store.
type owned struct {
	*Store
	file *sqlitefile.File
}

func (o owned) Close() error { return o.file.Close() }

func open(path string, nowMS func() int64) (owned, error) {
	file, err := sqlitefile.OpenStore(context.Background(), path, sqlitefile.Options{NowMS: nowMS}, Tables)
	if err != nil {
		return owned{}, err
	}
	return owned{New(file), file}, nil
}

func newPath(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "kazahana-test-") // it need not survive anything
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, sqlitefile.StoreName)
}

func TestConformance(t *testing.T) {
	ring.All(t)
	locktest.Run(t, func(t *testing.T) locktest.Backend {
		path := newPath(t)
		var now atomic.Int64
		now.Store(1_800_000_000_000)
		advance := func(d time.Duration) { now.Add(d.Milliseconds()) }
		return locktest.Backend{
			LooseGets: true,
			Open:      func() (lock.Store, error) { return open(path, now.Load) },
			Advance:   advance,
			Restart:   func() error { return nil }, // all is in the file, which every Open opens anew
			Sweep: func() error {
				advance(lock.MaxTTL + lock.KeepIdle + time.Second)
				return sweepAll(path, now.Load)
			},
		}
	})
}

// sweepAll has writes delete the keys that have been idle for long.
func sweepAll(path string, nowMS func() int64) error {
	s, err := open(path, nowMS)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		n := 0
		err := s.file.Write(context.Background(), func(tx *sqlitefile.Tx) error {
			var floor int64
			if err := tx.QueryRow(`SELECT coalesce(max(token), 0) FROM lock_floor`, nil, &floor); err != nil {
				return err
			}
			if _, err := deleteIdle(tx, floor); err != nil {
				return err
			}
			return tx.QueryRow(`SELECT count(*) FROM locks WHERE ends <= ?`, []any{tx.NowMS - lock.KeepIdle.Milliseconds()}, &n)
		}, nil)
		if err != nil || n == 0 {
			return err
		}
	}
}

// Writes delete what has been idle for long, although they do not look for it
// each time. Nobody's token is granted again.
func TestWritesDeleteIdleKeys(t *testing.T) {
	var now atomic.Int64
	now.Store(1_800_000_000_000)
	s, err := open(newPath(t), now.Load)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	acquire := func(key string) lock.Lease {
		t.Helper()
		l, err := s.Do(t.Context(), lock.Request{
			Op: lock.Acquire, Tenant: "default", Key: key, Owner: "o", LeaseID: lock.NewLeaseID(), TTLMS: lock.MinTTL.Milliseconds(),
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	acquire("idle")
	acquire("idle too") // nothing was idle just before
	now.Add((lock.MinTTL + lock.KeepIdle).Milliseconds())
	acquire("other")
	for _, key := range []string{"idle", "idle too"} {
		if l, err := s.Get(t.Context(), "default", key); !errors.Is(err, lock.ErrNotFound) {
			t.Errorf("after %v without use there is %+v, %v", lock.KeepIdle, l, err)
		}
	}
	if l := acquire("idle"); l.Token < 2 {
		t.Errorf("token %d was granted again", l.Token)
	}
}

// TestIdleKeysAreLookedForNowAndThen: a search that has found nothing is not made
// again with each write, but once sweepPause has passed.
func TestIdleKeysAreLookedForNowAndThen(t *testing.T) {
	var now atomic.Int64
	now.Store(1_800_000_000_000)
	s, err := open(newPath(t), now.Load)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	acquire := func(key string) {
		t.Helper()
		if _, err := s.Do(t.Context(), lock.Request{
			Op: lock.Acquire, Tenant: "default", Key: key, Owner: "o", LeaseID: lock.NewLeaseID(), TTLMS: lock.MinTTL.Milliseconds(),
		}); err != nil {
			t.Fatal(err)
		}
	}
	known := func() bool {
		t.Helper()
		_, err := s.Get(t.Context(), "default", "idle")
		if err != nil && !errors.Is(err, lock.ErrNotFound) {
			t.Fatal(err)
		}
		return err == nil
	}
	acquire("idle")
	now.Add((lock.MinTTL + lock.KeepIdle - sweepPause/2).Milliseconds())
	acquire("before") // nothing is idle yet
	now.Add(sweepPause.Milliseconds() - 1)
	acquire("meanwhile")
	if !known() {
		t.Errorf("it was looked for idle keys %v after nothing was found", sweepPause-time.Millisecond)
	}
	now.Add(1)
	acquire("after")
	if known() {
		t.Errorf("no idle keys were looked for, %v after nothing was found", sweepPause)
	}
}
