package postgres_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/postgres"
	"github.com/kazahana/kazahana/internal/record/recordtest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

// owned closes the client with the store.
type owned struct {
	*postgres.Store
	client *postgresconn.Client
}

func (o owned) Close() error {
	if err := o.Store.Close(); err != nil {
		return err
	}
	return o.client.Close()
}

const began = 1_800_000_000_000

func open(cfg postgresconn.Config, area record.Area) (owned, error) {
	client, err := postgresconn.Open(cfg)
	if err != nil {
		return owned{}, err
	}
	return owned{postgres.New(client, area, 0), client}, nil
}

func TestConformance(t *testing.T) {
	recordtest.Run(t, func(t *testing.T) recordtest.Target {
		s := postgrestest.Shared(t)
		cfg := s.Config()
		set := s.Clock(&cfg)
		now := int64(began)
		set(now)
		return recordtest.Target{
			Open:    func(area record.Area) (record.Store, error) { return open(cfg, area) },
			Advance: func(d time.Duration) { now += d.Milliseconds(); set(now) },
		}
	})
}

// TestListReadsItsPrefixOnly: a page without enough records does not read on to the end of the
// table. The plan is one for any arguments, as the server makes it for a statement that comes
// often, and of an index, however small the table is.
func TestListReadsItsPrefixOnly(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config()
	s, err := open(cfg, recordtest.One)
	must.Succeed(t, err)
	defer s.Close()
	_, err = s.Change(t.Context(), record.Ask{Keys: []string{"k"}}, func(record.View) ([]record.Write, error) {
		return []record.Write{{Key: "k", Value: []byte("makes the table")}}, nil
	})
	must.Succeed(t, err)
	results, err := connect(t, server).PgConn().Exec(t.Context(), "SET search_path = "+cfg.Schema+
		"; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off"+
		"; PREPARE list AS "+postgres.ListSQL(recordtest.One)+"; EXPLAIN EXECUTE list (1, '', 'p/', 'p0', 1)").ReadAll()
	must.Succeed(t, err)
	var plan []string
	for _, row := range results[len(results)-1].Rows {
		plan = append(plan, string(row[0]))
	}
	i := slices.IndexFunc(plan, func(line string) bool { return strings.Contains(line, "Index Cond") })
	if i < 0 || !strings.Contains(plan[i], "(key >= ") || !strings.Contains(plan[i], "(key < ") {
		t.Errorf("the index has no bounds on both sides:\n%s", strings.Join(plan, "\n"))
	}
}

// connect returns a session of the administrator.
func connect(t *testing.T, server *postgrestest.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), "host="+server.Dir+" port="+postgrestest.Port+" user=postgres")
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// A key that many change at once takes one session, and leaves the others to other keys.
func TestHotKeyLeavesSessions(t *testing.T) {
	server := postgrestest.Shared(t)
	cfg := server.Config("max_connections=2")
	s, err := open(cfg, recordtest.One)
	must.Succeed(t, err)
	defer s.Close()
	change := func(ctx context.Context, key string) error {
		_, err := s.Change(ctx, record.Ask{Keys: []string{key}}, func(record.View) ([]record.Write, error) {
			return []record.Write{{Key: key, Value: []byte("1")}}, nil
		})
		return err
	}
	must.Succeed(t, change(t.Context(), "cold")) // makes the tables
	other := connect(t, server)
	lock := func(what string) {
		t.Helper()
		_, err := other.Exec(t.Context(), "SELECT "+what+"(hashtextextended($1, 3))", cfg.Schema+"/"+recordtest.One.Name+"/hot")
		must.Succeed(t, err)
	}
	lock("pg_advisory_lock")
	const many = 9
	done := make(chan error, many)
	for range many {
		go func() { done <- change(t.Context(), "hot") }()
	}
	await.Eventually(t, "one waits for the other process", func() bool {
		return server.SQL("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == "1"
	})
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for range 20 { // the others begin meanwhile
		if err := change(ctx, "cold"); err != nil {
			t.Error(err)
			break
		}
	}
	impatient, end := context.WithCancel(t.Context())
	end()
	if err := change(impatient, "hot"); !errors.Is(err, connurl.ErrNotSent) || !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that does not get its turn: %v", err)
	}
	lock("pg_advisory_unlock")
	for range many {
		must.Succeed(t, <-done)
	}
}

// The answer of a commit is lost: whether it was carried out is not known, and the record tells.
func TestLostAnswer(t *testing.T) {
	server := postgrestest.Shared(t)
	proxy, far := throughProxy(t, server, server.Config())
	s, err := open(far, recordtest.One)
	must.Succeed(t, err)
	defer s.Close()
	runs := 0
	count := func(meanwhile func()) error {
		_, err := s.Change(t.Context(), record.Ask{Keys: []string{"n"}}, func(v record.View) ([]record.Write, error) {
			runs++
			meanwhile()
			return []record.Write{{Key: "n", Value: append(v.Records["n"].Value, 'I')}}, nil
		})
		return err
	}
	for range 2 { // the session knows the statements
		must.Succeed(t, count(func() {}))
	}
	runs = 0
	if err := count(func() { proxy.Lose(func() {}) }); !errors.Is(err, record.ErrOutrun) || errors.Is(err, connurl.ErrNotSent) || runs != 1 {
		t.Errorf("after %d runs the error is %v, want ErrOutrun after one", runs, err)
	}
	v, err := s.Read(t.Context(), record.Ask{Keys: []string{"n"}})
	if got := string(v.Records["n"].Value); err != nil || got != "III" {
		t.Errorf("%s was counted (%v), want III", got, err)
	}
}
