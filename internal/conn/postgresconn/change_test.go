package postgresconn_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// nothing is an ask that reads nothing.
func nothing(*pgx.Batch) {}

// The answer of a commit is lost: the server says what became of it.
func TestLostAnswerIsLookedUp(t *testing.T) {
	server := postgrestest.New(t)
	server.SQL("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	server.SQL("SELECT pg_reload_conf()")
	cfg := server.Config("synchronous_commit=local")
	local := open(t, cfg) // which does not wait for a standby
	must.Succeed(t, note(t.Context(), local))
	const sessions = "FROM pg_stat_activity WHERE application_name = 'kazahana' AND "
	end := func(which string) {
		await.Success(t, "the session ends", func() error {
			if server.SQL("SELECT count(pg_terminate_backend(pid)) "+sessions+which) == "0" {
				return errors.New("it is not there yet")
			}
			return nil
		})
	}
	aborted := local.Change(t.Context(), nothing, func(tx *postgresconn.Tx) error {
		tx.Queue("INSERT INTO note VALUES (1)")
		end("state = 'idle in transaction'")
		return nil
	})
	if aborted == nil || errors.Is(aborted, connurl.ErrNotSent) {
		t.Errorf("a commit that the server never saw: %v, want an error that leaves the outcome open", aborted)
	}
	cfg.SynchronousCommit = "on"
	s, done := open(t, cfg), make(chan error, 1)
	go func() { done <- note(t.Context(), s) }()
	end("wait_event = 'SyncRep'") // it is committed, and no standby has it
	await.Success(t, "it is confirmed by another commit", func() error {
		if server.SQL("SELECT count(*) "+sessions+"wait_event = 'SyncRep'") == "0" {
			return errors.New("there is none")
		}
		return nil
	})
	server.SQL("ALTER SYSTEM SET synchronous_standby_names = ''")
	server.SQL("SELECT pg_reload_conf()")
	must.Succeed(t, <-done)
	if n := server.SQL("SELECT count(*) FROM " + cfg.Schema + ".note"); n != "2" {
		t.Errorf("%s rows, want those of two changes", n)
	}
}

// The store knows the longest that a grant lasts before the grant is made, also where its commit
// fails.
func TestLongestIsKnownFirst(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config()
	bounded := kind
	bounded.MaxMS = 24 * hour
	s := openAs(t, cfg, bounded)
	must.Succeed(t, note(t.Context(), s))
	calls := 0
	must.Succeed(t, s.Change(t.Context(), nothing, func(tx *postgresconn.Tx) error {
		if calls++; calls == 2 {
			if known := server.SQL("SELECT longest_ms FROM " + cfg.Schema + ".life"); known != "18000000" {
				t.Errorf("the store knows of %s ms, want five hours", known)
			}
		}
		tx.Lasts(5 * hour)
		tx.Queue("INSERT INTO note VALUES (2)")
		return nil
	}))
	if n := server.SQL("SELECT count(*) FROM " + cfg.Schema + ".note WHERE n = 2"); n != "1" || calls != 2 {
		t.Errorf("%s rows after %d decisions, want 1 after 2", n, calls)
	}
}

// A session that was there before a failover leads to the old primary, which is up. It
// is given up, and the old primary is left alone.
func TestOldSessionToAnOldPrimary(t *testing.T) {
	old := postgrestest.New(t)
	cfg := old.Config()
	s := open(t, cfg)
	must.Succeed(t, note(t.Context(), s))
	standby := old.Standby("standby")
	fences := func() string { return old.SQL("SELECT fences, longest_ms FROM " + cfg.Schema + ".life") }
	before := fences()
	var promoted postgresconn.Moment
	must.Succeed(t, s.Change(t.Context(), nothing, func(*postgresconn.Tx) error { // the old session
		standby.Promote()
		old.LeadTo(standby)
		promoted = look(t, s)
		return nil
	}))
	if !strings.Contains(promoted.Fence.Reason, "a standby was promoted") {
		t.Fatalf("the fence is %+v", promoted.Fence)
	}
	same(t, promoted, look(t, s))
	if after := fences(); after != before {
		t.Errorf("the old primary has fences and longest term %s, want %s as before", after, before)
	}
}

// The time-outs of a role are for other programs: they do not end the sessions here.
func TestRolesTimeoutsAreSetAside(t *testing.T) {
	server := postgrestest.New(t)
	cfg := server.Config()
	role := pgx.Identifier{cfg.Username}.Sanitize()
	names := []string{"idle_session_timeout", "statement_timeout", "lock_timeout"}
	if server.SQL("SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'") == "1" {
		names = append(names, "transaction_timeout") // of PostgreSQL 17
	}
	for _, name := range append(names, "idle_in_transaction_session_timeout") {
		server.SQL("ALTER ROLE " + role + " SET " + name + " = '1min'")
	}
	client, err := postgresconn.Open(cfg)
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, client.Close()) })
	session, end, err := client.Session(t.Context())
	must.Succeed(t, err)
	defer end()
	for _, name := range names {
		var value string
		must.Succeed(t, session.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value))
		if value != "0" {
			t.Errorf("%s is %s", name, value)
		}
	}
}
