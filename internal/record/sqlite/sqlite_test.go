package sqlite_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/recordtest"
	"github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/testkit/sqlitetest"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		os.Exit(runChild(name))
	}
	await.Main(m)
}

// owned closes the file with the store.
type owned struct {
	*sqlite.Store
	file *sqlitefile.File
	end  func() error
}

func (o owned) Close() error { return o.end() }

// open opens a file that this process owns, with the clients that it has.
func open(path string, opts sqlitefile.Options) (owned, error) {
	file, end, err := sqlitetest.Open(path, opts)
	if err != nil {
		return owned{}, err
	}
	return owned{sqlite.New(file, record.Area{MaxGrantMS: opts.MaxTermMS}), file, end}, nil
}

// openShared opens a file that processes share, as another one.
func openShared(path string, opts sqlitefile.Options) (owned, error) {
	file, err := sqlitefile.Open(context.Background(), path, &sqlitefile.Kind{
		Name: "file of records", ApplicationID: 0x7265636f, Schema: sqlite.Tables,
	}, opts)
	if err != nil {
		return owned{}, err
	}
	return owned{sqlite.New(file, record.Area{MaxGrantMS: opts.MaxTermMS}), file, file.Close}, nil
}

func newPath(t *testing.T) string { return filepath.Join(ring.Dir(t), sqlitefile.StoreName) }

// at is a clock.
func at(ms int64) *atomic.Int64 {
	var clock atomic.Int64
	clock.Store(ms)
	return &clock
}

const began = 1_800_000_000_000

func TestConformance(t *testing.T)            { conforms(t, open) }
func TestConformanceOfProcesses(t *testing.T) { conforms(t, openShared) }

func conforms(t *testing.T, open func(path string, opts sqlitefile.Options) (owned, error)) {
	ring.All(t)
	recordtest.Run(t, func(t *testing.T) recordtest.Target {
		clock := at(began)
		folder := ring.Dir(t)
		return recordtest.Target{
			Open: func(area record.Area) (record.Store, error) {
				s, err := open(filepath.Join(folder, area.Name+".db"), sqlitefile.Options{NowMS: clock.Load, MaxTermMS: area.MaxGrantMS})
				s.Store = sqlite.New(s.file, area)
				return s, err
			},
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
		}
	})
}

func mustOpen(t *testing.T, path string, clock *atomic.Int64) owned {
	t.Helper()
	s, err := open(path, sqlitefile.Options{NowMS: clock.Load})
	must.Succeed(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func put(t *testing.T, s record.Store, w record.Write) {
	t.Helper()
	if _, err := s.Change(t.Context(), record.Ask{Keys: []string{w.Key}}, func(record.View) ([]record.Write, error) {
		return []record.Write{w}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A list reads no more than its page, and an index finds due records.
func TestStatementsUseIndexes(t *testing.T) {
	s := mustOpen(t, newPath(t), at(began))
	put(t, s, record.Write{Key: "k", Value: []byte{}})
	put(t, s, record.Write{Key: "k"})
	if _, err := s.List(t.Context(), "k", "", 10); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlitefile.Read(t.Context(), s.file, func(session *sqlitefile.Session) (none struct{}, err error) {
		for _, query := range session.Statements() {
			if !strings.Contains(query, "record") {
				continue
			}
			args := make([]any, strings.Count(query, "?"))
			for i := range args {
				args[i] = 1
			}
			if err := session.QueryRows("EXPLAIN QUERY PLAN "+query, args, func(scan func(...any) error) error {
				var a, b, c int
				var detail string
				err := scan(&a, &b, &c, &detail)
				if strings.HasPrefix(detail, "SCAN") || strings.Contains(detail, "TEMP B-TREE") {
					t.Errorf("%s: %s", query, detail)
				}
				return err
			}); err != nil {
				return none, err
			}
		}
		return none, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A caller that is out of time leaves while the rule still runs; the race detector watches their
// common memory.
func TestChangeThatIsGivenUp(t *testing.T) {
	clock := at(began)
	s, err := open(newPath(t), sqlitefile.Options{NowMS: clock.Load})
	must.Succeed(t, err)
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	ask := record.Ask{Keys: []string{"a/b"}}
	_, err = s.Change(ctx, ask, func(record.View) ([]record.Write, error) {
		time.Sleep(50 * time.Millisecond) // a channel would order what must not need it
		return []record.Write{{Key: "a/b", Value: []byte("late")}}, nil
	})
	if err == nil {
		t.Error("the change was answered")
	}
	if _, err := s.Read(t.Context(), ask); err != nil { // behind it
		t.Error(err)
	}
}
