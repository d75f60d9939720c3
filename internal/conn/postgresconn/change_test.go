package postgresconn_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// nothing is an ask that reads nothing.
func nothing(*pgx.Batch) {}

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
