package postgresconn_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

const hour = 3600 * 1000

// kind is a store with one table.
var kind = postgresconn.Kind{Name: "test", Tables: []string{"CREATE TABLE IF NOT EXISTS note (n bigint)"}, LongestMS: hour}

func open(t *testing.T, cfg postgresconn.Config) *postgresconn.Store { return openAs(t, cfg, kind) }

func openAs(t *testing.T, cfg postgresconn.Config, kind postgresconn.Kind) *postgresconn.Store {
	t.Helper()
	client, err := postgresconn.Open(cfg)
	must.Succeed(t, err)
	t.Cleanup(func() { client.Close() })
	return client.Use(kind)
}

// longer is a kind with grants that last for five hours.
func longer() postgresconn.Kind {
	k := kind
	k.LongestMS = 5 * hour
	return k
}

// used opens a store that a row is written to, and shows its moment then.
func used(t *testing.T, cfg postgresconn.Config) (s *postgresconn.Store, before postgresconn.Moment) {
	t.Helper()
	s = open(t, cfg)
	must.Succeed(t, note(t.Context(), s))
	return s, look(t, s)
}

// note writes a row; a server that is about to be ready gets time.
func note(ctx context.Context, s *postgresconn.Store) error {
	return s.Change(ctx, func(b *pgx.Batch) {}, func(tx *postgresconn.Tx) error {
		tx.Queue("INSERT INTO note VALUES ($1)", tx.NowMS)
		return nil
	})
}

func look(t *testing.T, s *postgresconn.Store) (m postgresconn.Moment) {
	t.Helper()
	await.Success(t, "the store is seen", func() (err error) {
		m, err = s.Look(t.Context(), nil)
		return err
	})
	return m
}

// fenced checks that a new life has begun, which is fenced for an hour.
func fenced(t *testing.T, before, after postgresconn.Moment, reason string) {
	t.Helper()
	f := after.Fence
	if f.Life == before.Fence.Life || f.Trusted || !f.Forgot || !f.Holds(after.NowMS) || f.UntilMS-f.FromMS != hour || !strings.Contains(f.Reason, reason) {
		t.Errorf("the fence is %+v after %+v, want one of an hour because %s", f, before.Fence, reason)
	}
}

func same(t *testing.T, before, after postgresconn.Moment) {
	t.Helper()
	if after.Fence != before.Fence {
		t.Errorf("the fence is %+v, want %+v", after.Fence, before.Fence)
	}
}

func TestNewStore(t *testing.T) {
	s := open(t, postgrestest.Shared(t).Config())
	must.Succeed(t, note(t.Context(), s))
	m := look(t, s)
	if f := m.Fence; f.Life == "" || !f.Trusted || f.Forgot || f.UntilMS != 0 || m.LastMS == 0 || m.LastMS > m.NowMS {
		t.Errorf("a new store has %+v", m)
	}
}

// Transactions of one process overtake each other: a transaction that has read less than another
// is no sign of a loss.
func TestManyAtOnce(t *testing.T) {
	s, before := used(t, postgrestest.Shared(t).Config())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if err := note(t.Context(), s); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	same(t, before, look(t, s))
}

// A standby that is promoted may lack the last commits.
func TestPromotedStandby(t *testing.T) {
	primary := postgrestest.New(t)
	cfg := primary.Config()
	_, before := used(t, cfg)
	standby := primary.Standby("standby")
	far := cfg
	far.Dir = standby.Dir
	if _, err := open(t, far).Look(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "it is a standby") || !errors.Is(err, connurl.ErrNotSent) {
		t.Errorf("a standby: %v", err)
	}
	primary.Stop()
	standby.Promote()
	promoted := open(t, far)
	after := look(t, promoted)
	fenced(t, before, after, "a standby was promoted")
	same(t, after, look(t, open(t, far)))
	must.Succeed(t, promoted.Init(t.Context()))
	if f := look(t, promoted).Fence; !f.Trusted || !f.Forgot || f.UntilMS != 0 || f.Life != after.Fence.Life {
		t.Errorf("after Init the fence is %+v", f)
	}
}

// failover_fence=0 says that a failover loses nothing. It says nothing of a backup that
// is put back under a process that has seen more.
func TestFailoverWithoutAFence(t *testing.T) {
	primary := postgrestest.New(t)
	cfg := primary.Config("failover_fence=0")
	s, before := used(t, cfg)
	standby := primary.Standby("standby")
	must.Succeed(t, note(t.Context(), s))
	primary.Caught(standby)
	primary.Stop()
	standby.Promote()
	far := cfg
	far.Dir = standby.Dir
	same(t, before, look(t, open(t, far)))
}

// Committed changes are on the disk: a crash is no reason for a fence, unless fsync is off.
func TestCrash(t *testing.T) {
	for _, fsync := range []string{"on", "off"} {
		server := postgrestest.New(t, "-c", "fsync="+fsync)
		s := open(t, server.Config())
		must.Succeed(t, note(t.Context(), s))
		before := look(t, s)
		server.Restart()
		if after := look(t, s); fsync == "on" {
			same(t, before, after)
		} else {
			fenced(t, before, after, "another one than before")
		}
	}
}

// A backup that is put back as it is begins no timeline. A process that has seen more
// knows it; another one notices what that one did.
func TestBackupPutBack(t *testing.T) {
	server := postgrestest.New(t)
	cfg := server.Config()
	s, other := open(t, cfg), open(t, cfg)
	must.Succeed(t, note(t.Context(), s))
	backup := server.Backup()
	for range 100 {
		must.Succeed(t, note(t.Context(), s))
	}
	before := look(t, s)
	same(t, before, look(t, other))
	server.Stop()
	server.PutBack(backup)
	server.Start()
	after := look(t, s)
	fenced(t, before, after, "log ends earlier")
	same(t, after, look(t, other))
	same(t, after, look(t, s))
}

// Tables that vanish under a process are made anew, and not trusted.
func TestTablesAreGone(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config()
	s, before := used(t, cfg)
	server.SQL("DROP SCHEMA " + cfg.Schema + " CASCADE")
	fenced(t, before, look(t, s), "the tables were gone")
}

// A process that grants for longer makes the fence last longer when it finds it.
func TestFenceOfTheLongest(t *testing.T) {
	cfg := postgrestest.Shared(t).Config()
	s := open(t, cfg)
	must.Succeed(t, note(t.Context(), s))
	before := look(t, openAs(t, cfg, longer()))
	_, err := s.Fence(t.Context())
	must.Succeed(t, err)
	fenced(t, before, look(t, s), "an operator said") // a look without a fence has changed nothing
	look(t, openAs(t, cfg, longer()))
	if f := look(t, s).Fence; f.UntilMS-f.FromMS != 5*hour {
		t.Errorf("the fence lasts %d ms", f.UntilMS-f.FromMS)
	}
}

// A commit that is not confirmed by a standby is an unknown outcome, even though the
// server calls it one.
func TestWaitForAStandbyIsCancelled(t *testing.T) {
	server := postgrestest.New(t, "-c", "synchronous_standby_names=nobody")
	local := open(t, server.Config("synchronous_commit=local")) // which does not wait
	must.Succeed(t, note(t.Context(), local))
	cfg := local.Client().Config()
	cfg.SynchronousCommit = "on"
	s := open(t, cfg)
	done := make(chan error, 1)
	go func() { done <- note(context.Background(), s) }()
	await.Success(t, "the wait is cancelled", func() error {
		if server.SQL("SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "0" {
			return errors.New("nobody waits")
		}
		return nil
	})
	if err := <-done; !errors.Is(err, postgresconn.ErrUnconfirmed) || errors.Is(err, connurl.ErrNotSent) {
		t.Errorf("the error is %v, want ErrUnconfirmed", err)
	}
}

// A pool of connections that gives each transaction another session is refused.
func TestSharedSession(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config("max_connections=1")
	s := open(t, cfg)
	must.Succeed(t, note(t.Context(), s))
	ask := func(b *pgx.Batch) { b.Queue("RESET kazahana.life") }
	if err := s.Change(t.Context(), ask, func(*postgresconn.Tx) error { return nil }); err == nil || !strings.Contains(err.Error(), "pool_mode=session") {
		t.Errorf("another session: %v", err)
	}
	ask = func(b *pgx.Batch) { b.Queue("SET LOCAL synchronous_commit TO off") }
	if err := s.Change(t.Context(), ask, func(*postgresconn.Tx) error { return nil }); err == nil || !strings.Contains(err.Error(), "synchronous_commit is off, not on") {
		t.Errorf("another synchronous_commit: %v", err)
	}
}

// A server that is frozen costs a caller its time, and nothing is sent late.
func TestFrozen(t *testing.T) {
	server := postgrestest.New(t)
	s := open(t, server.Config())
	must.Succeed(t, note(t.Context(), s))
	server.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := note(ctx, s); !errors.Is(err, connurl.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v, want ErrNotSent and DeadlineExceeded", err)
	}
	server.Thaw()
	await.Success(t, "it goes on", func() error { return note(t.Context(), s) })
	if n := server.SQL("SELECT count(*) FROM " + s.Client().Config().Schema + ".note"); n != "2" {
		t.Errorf("%s rows, want 2", n)
	}
}
