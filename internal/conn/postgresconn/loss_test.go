package postgresconn_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// lacks is the reason for a fence where the store lacks what a process has seen in it.
const lacks = "the server lacks what it had before"

// A restore to a point in time begins a timeline, as a failover does. A process that has
// committed since then knows better than failover_fence=0.
func TestRestoredToAPointUnderAProcess(t *testing.T) {
	server := postgrestest.New(t)
	s := open(t, server.Config("failover_fence=0"))
	must.Succeed(t, note(t.Context(), s))
	backup := server.Backup()
	for range 50 {
		must.Succeed(t, note(t.Context(), s))
	}
	before := look(t, s)
	server.Stop()
	must.Succeed(t, os.WriteFile(backup.Data()+"/recovery.signal", nil, 0o644))
	server.PutBack(backup)
	server.AddArgs("-c", "restore_command=false", "-c", "recovery_target_action=promote", "-c", "recovery_target=immediate")
	server.Start()
	after := look(t, s)
	fenced(t, before, after, lacks)
	must.Succeed(t, note(t.Context(), s))
	same(t, after, look(t, s))
}

// What failover_fence says of a failover does not hold for another cluster.
func TestAnotherClusterWithoutAFence(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config("failover_fence=0")
	_, before := used(t, cfg)
	server.SQL("UPDATE " + cfg.Schema + ".life SET server = '123/00000001'")
	fenced(t, before, look(t, open(t, cfg)), "another one than before")
}

// An old primary that comes back is another life than the one of the standby that was
// promoted meanwhile, even though its own row says nothing of it.
func TestOldPrimaryComesBack(t *testing.T) {
	old := postgrestest.New(t)
	s, before := used(t, old.Config())
	standby := old.Standby("standby")
	old.Stop()
	standby.Promote()
	// The address of the old one leads to the new one for a while.
	must.Succeed(t, os.Rename(old.Dir, old.Dir+"-old"))
	must.Succeed(t, os.Symlink(standby.Dir, old.Dir))
	promoted := look(t, s)
	fenced(t, before, promoted, "a standby was promoted")
	standby.Stop()
	must.Succeed(t, os.Remove(old.Dir))
	must.Succeed(t, os.Rename(old.Dir+"-old", old.Dir))
	old.Start()
	fenced(t, promoted, look(t, s), lacks)
}

// A process that has not seen the tables before makes them anew and trusts them; a process that
// has seen them does not.
func TestTablesAreMadeAnewByAnother(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config()
	s, before := used(t, cfg)
	server.SQL("DROP SCHEMA " + cfg.Schema + " CASCADE")
	other := open(t, cfg)
	must.Succeed(t, note(t.Context(), other))
	after := look(t, s)
	fenced(t, before, after, lacks)
	same(t, after, look(t, other))
}

// A process that only reads leaves it to others to find that the tables are gone.
func TestLookMakesNoTables(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config()
	s := open(t, cfg)
	if m := look(t, s); m.NowMS == 0 || m.Fence != (postgresconn.Fence{Trusted: true}) {
		t.Errorf("a store without tables is %+v", m)
	}
	if there := server.SQL("SELECT count(*) FROM pg_namespace WHERE nspname = '" + cfg.Schema + "'"); there != "0" {
		t.Error("a look has made the schema")
	}
	if f, err := s.Fence(t.Context()); err != nil || f.Trusted || f.UntilMS-f.FromMS != hour {
		t.Errorf("the fence of a store without tables is %+v, %v", f, err)
	}
}

// The tables of another version are refused by name, and left as they are, also where tables of
// this version are missing.
func TestTablesOfAnotherVersion(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config()
	used(t, cfg)
	server.SQL("UPDATE "+cfg.Schema+".life SET format = 1", "DROP TABLE "+cfg.Schema+".note")
	s := open(t, cfg)
	_, look := s.Look(t.Context(), func(b *pgx.Batch) { b.Queue("SELECT n FROM note") })
	_, fence := s.Fence(t.Context())
	for what, err := range map[string]error{"Look": look, "Change": note(t.Context(), s), "Init": s.Init(t.Context()), "Fence": fence} {
		if !errors.Is(err, postgresconn.ErrServer) || !strings.Contains(err.Error(), "its tables have the format 1, and this program knows 2") {
			t.Errorf("%s: the error is %v", what, err)
		}
	}
	if there := server.SQL("SELECT to_regclass('" + cfg.Schema + ".note')::text"); there != "<nil>" {
		t.Errorf("there is a table %s", there)
	}
}

// raised is how long a fence lasts once a process has come that grants for five hours.
func raised(t *testing.T, cfg postgresconn.Config) int64 {
	t.Helper()
	s := openAs(t, cfg, longer())
	must.Succeed(t, note(t.Context(), s))
	f := look(t, s).Fence
	return f.UntilMS - f.FromMS
}

// Another process may begin the fence for a loss, and know only the remaining rows. A process
// that has seen a longer term makes the fence last longer.
func TestFenceOfTheLongestThatWasLost(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config()
	if lasts := raised(t, cfg); lasts != 0 {
		t.Fatalf("a new store has a fence of %d ms", lasts)
	}
	s := open(t, cfg)
	look(t, s)
	server.SQL("UPDATE " + cfg.Schema + ".life SET longest_ms = 0")
	f, err := open(t, cfg).Fence(t.Context())
	must.Succeed(t, err)
	if f.UntilMS-f.FromMS != hour {
		t.Errorf("the fence of another process lasts %d ms, want an hour", f.UntilMS-f.FromMS)
	}
	if f := look(t, s).Fence; f.UntilMS-f.FromMS != 5*hour {
		t.Errorf("the fence lasts %d ms, want five hours", f.UntilMS-f.FromMS)
	}
}

// failover_fence in the URL keeps the length of a fence after a failover, and of no
// other fence.
func TestFenceOfTheLongestWithFailoverFence(t *testing.T) {
	server := postgrestest.Shared(t)
	const minute = 60 * 1000
	promote := func(cfg postgresconn.Config) {
		server.SQL("UPDATE " + cfg.Schema + ".life SET server = split_part(server, '/', 1) || '/0'")
	}
	byHand, failover, both := server.Config("failover_fence=1m"), server.Config("failover_fence=1m"), server.Config("failover_fence=1m")
	for _, cfg := range []postgresconn.Config{byHand, failover, both} {
		must.Succeed(t, note(t.Context(), open(t, cfg)))
	}
	for _, cfg := range []postgresconn.Config{byHand, both} {
		_, err := open(t, cfg).Fence(t.Context())
		must.Succeed(t, err)
	}
	for _, cfg := range []postgresconn.Config{failover, both} {
		promote(cfg)
		look(t, open(t, cfg))
	}
	if lasts := raised(t, byHand); lasts != 5*hour {
		t.Errorf("a fence by hand lasts %d ms, want five hours", lasts)
	}
	if lasts := raised(t, failover); lasts != minute {
		t.Errorf("a fence after a failover lasts %d ms, want a minute", lasts)
	}
	if lasts := raised(t, both); lasts != 5*hour {
		t.Errorf("a fence by hand that a failover came into lasts %d ms, want five hours", lasts)
	}
}
