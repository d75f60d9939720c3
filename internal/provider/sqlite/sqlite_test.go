package sqlite

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

	"go.uber.org/goleak"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		os.Exit(runChild(name))
	}
	goleak.VerifyTestMain(m)
}

// memoryDir is a directory that need not survive anything, so that a test of
// what is granted does not pay for the disk.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "kazahana-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var files atomic.Int64

func newPath(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("leases-%d.db", files.Add(1)))
}

func mustOpen(t *testing.T, cfg Config) *Provider {
	t.Helper()
	p, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func defaultServices() provider.Services {
	return provider.Services{Default: provider.DefaultTerms()}
}

func TestConformance(t *testing.T) {
	ring.All(t)
	dir := memoryDir(t)
	providertest.Run(t, func(t *testing.T) providertest.Store {
		var clock atomic.Int64
		path := newPath(dir)
		var first *Provider
		return providertest.Store{
			Open: func(services provider.Services) (provider.Provider, error) {
				p, err := Open(context.Background(), Config{Path: path, Services: services, NowMS: clock.Load})
				if err != nil {
					return nil, err
				}
				if first == nil {
					first = p
				}
				return p, nil
			},
			SetClock:   clock.Store,
			Check:      func() error { return checkIndex(first) },
			CrashSteps: []string{sqlitefile.StepBegun, sqlitefile.StepWritten, sqlitefile.StepCommitted},
			Crash: func(step string, services provider.Services, req provider.AcquireRequest) error {
				return crashAt(t, step, path, services, req, clock.Load())
			},
		}
	})
}

// checkIndex compares the line in the file with what the records say.
func checkIndex(p *Provider) error {
	return p.write(context.Background(), func(t *transaction) error {
		r := &reader{Session: t.Session, name: provider.DefaultPool}
		known, err := r.Pool()
		if err != nil || !known.Exists {
			return err
		}
		whole := pool.EmptyLine(known.Timeline)
		marks, err := r.marks()
		if err != nil {
			return err
		}
		segments, err := r.Over(snowflake.Slot{Start: whole.Low, End: whole.End}, -1)
		if err != nil {
			return err
		}
		return providertest.CheckLine(whole, segments, marks)
	}, nil)
}

// Should the index ever contradict the records, the records hold: nothing is
// granted that they say is taken.
func TestRecordsOutweighTheIndex(t *testing.T) {
	ring.All(t)
	one, coarse := provider.DefaultTerms(), provider.DefaultTerms().WithBitSeq(9)
	one.IDs, coarse.IDs = provider.IDRange{Low: 1, End: 2}, provider.IDRange{Low: 0, End: 1}
	for _, first := range []string{"", "coarse"} {
		for _, second := range []string{"", "coarse"} {
			p := mustOpen(t, Config{
				Path:     newPath(memoryDir(t)),
				Services: provider.Services{Default: one, Named: map[string]provider.Terms{"coarse": coarse}},
			})
			acquire := func(service string) error {
				_, err := p.Acquire(context.Background(), provider.AcquireRequest{Service: service})
				return err
			}
			if err := acquire(first); err != nil {
				t.Fatal(err)
			}
			if err := acquire(second); err == nil {
				t.Fatal("granted over another grant")
			}
			if _, err := sqlitefile.Read(context.Background(), p.file, func(s *sqlitefile.Session) (struct{}, error) {
				return struct{}{}, s.ExecOnce("UPDATE segment SET free_at = 0")
			}); err != nil {
				t.Fatal(err)
			}
			if err := acquire(second); !errors.Is(err, pool.ErrInconsistent) {
				t.Errorf("%q over %q: the error is %v, want ErrInconsistent", second, first, err)
			}
		}
	}
}

func TestNewFileBeginsAtRandom(t *testing.T) {
	dir := memoryDir(t)
	seen := map[int64]bool{}
	for range 5 {
		p := mustOpen(t, Config{Path: newPath(dir), Services: defaultServices()})
		leases, err := p.Acquire(context.Background(), provider.AcquireRequest{})
		if err != nil {
			t.Fatal(err)
		}
		seen[leases[0].ID] = true
	}
	if len(seen) < 2 {
		t.Errorf("five new files all began at machine ID %v", seen)
	}
}

func TestHistoryIsForgotten(t *testing.T) {
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1000)
	p := mustOpen(t, Config{Path: newPath(memoryDir(t)), Services: defaultServices(), NowMS: clock.Load})
	acquire := func() {
		t.Helper()
		if _, err := p.Acquire(context.Background(), provider.AcquireRequest{ThroughputPerMS: 256 * 4}); err != nil {
			t.Fatal(err)
		}
	}
	count := func(table string) (n int) {
		t.Helper()
		_, err := sqlitefile.Read(context.Background(), p.file, func(s *sqlitefile.Session) (struct{}, error) {
			return struct{}{}, s.QueryRow("SELECT count(*) FROM "+table, nil, &n)
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 5 {
		acquire()
	}
	if got := count("history"); got != 20 {
		t.Errorf("history has %d rows, want 20", got)
	}
	clock.Add((historyKept + time.Hour).Milliseconds())
	// Each acquire of four forgets eight, as long as there are so many.
	for i, want := range []int{20 + 4 - 8, 16 + 4 - 8, 12 + 4 - 4, 12 + 4} {
		acquire()
		if got := count("history"); got != want {
			t.Errorf("after acquire %d history has %d rows, want %d", i, got, want)
		}
	}
	if got := count("slot"); got != 20+16 {
		t.Errorf("%d records, want 36: they are never deleted", got)
	}
}

// A lease that is extended for longer than the history is kept stays in it, from
// its beginning, until it has ended for so long.
func TestHistoryKeepsWhatIsExtended(t *testing.T) {
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1000)
	terms := provider.DefaultTerms()
	terms.Term, terms.Quarantine = 24*time.Hour, 0
	p := mustOpen(t, Config{Path: newPath(memoryDir(t)), Services: provider.Services{Default: terms}, NowMS: clock.Load})
	ctx := context.Background()
	acquire := func() lease.Lease {
		t.Helper()
		leases, err := p.Acquire(ctx, provider.AcquireRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return leases[0]
	}
	located := func(l lease.Lease, want int) {
		t.Helper()
		held, err := p.Locate(ctx, "", l.Slot().Start, l.Created)
		if err != nil || len(held) != want {
			t.Errorf("Locate of %v gave %v and the error %v, want %d", l, held, err, want)
		}
	}
	long, short := acquire(), acquire()
	for began := clock.Load(); clock.Load() < began+2*historyKept.Milliseconds(); {
		clock.Add(terms.Term.Milliseconds() * 9 / 10)
		longer, err := provider.Extend(ctx, p, "", long)
		if err != nil {
			t.Fatal(err)
		}
		long = longer
		acquire() // which forgets what may be forgotten
	}
	located(long, 1)
	located(short, 0)
	at := clock.Load()
	if err := p.Release(ctx, provider.ReleaseRequest{ID: long.ID, BitSeq: long.BitSeq, TimestampMS: at, Signature: lease.Sign(long.Secret, long.ID, at)}); err != nil {
		t.Fatal(err)
	}
	clock.Add(historyKept.Milliseconds() - terms.Term.Milliseconds())
	acquire()
	located(long, 1)
	clock.Add(2 * terms.Term.Milliseconds())
	for range 100 {
		acquire()
	}
	located(long, 0)
	if _, err := provider.Extend(ctx, p, "", long); err == nil {
		t.Error("a lease that was released was extended")
	}
}

func TestRelativePath(t *testing.T) {
	_, err := Open(context.Background(), Config{Path: "leases.db", Services: defaultServices()})
	if err == nil {
		t.Error("a relative path was accepted")
	}
}

// Every statement of a grant and a release finds its rows through an index:
// nothing reads a table from end to end, or sorts. The exception is the
// building of a line that is missing.
func TestStatementsUseIndexes(t *testing.T) {
	base := provider.DefaultTerms()
	services := provider.Services{Default: base, Named: map[string]provider.Terms{"coarse": base.WithBitSeq(10)}}
	p := mustOpen(t, Config{Path: newPath(memoryDir(t)), Services: services})
	ctx := context.Background()
	var leases []lease.Lease
	for _, service := range []string{"", "coarse", ""} {
		got, err := p.Acquire(ctx, provider.AcquireRequest{Service: service, ThroughputPerMS: 2000, RequestID: provider.NewSecret()})
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, got...)
	}
	for _, l := range leases[:2] {
		if _, err := provider.Extend(ctx, p, "", l); err != nil {
			t.Fatal(err)
		}
		if held, err := p.Locate(ctx, "", l.Slot().Start, l.Created); err != nil || len(held) != 1 {
			t.Fatalf("Locate gave %v and the error %v", held, err)
		}
	}
	if _, err := p.Counters(ctx, ""); err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		at := time.Now().UnixMilli()
		err := p.Release(ctx, provider.ReleaseRequest{ID: l.ID, BitSeq: provider.AnyBitSeq, TimestampMS: at, Signature: lease.Sign(l.Secret, l.ID, at)})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.List(ctx, ""); err != nil {
		t.Fatal(err)
	}
	_, err := sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) (struct{}, error) { return struct{}{}, checkPlans(t, s) })
	if err != nil {
		t.Fatal(err)
	}
}

func checkPlans(t *testing.T, s *sqlitefile.Session) error {
	var queries []string
	for _, q := range s.Statements() {
		if !strings.HasPrefix(q, "PRAGMA") && !strings.HasPrefix(q, "BEGIN") && q != "COMMIT" && q != "ROLLBACK" &&
			!strings.Contains(q, "sqlite_schema") { // which has a row for each table
			queries = append(queries, q)
		}
	}
	for _, q := range queries {
		args := make([]any, strings.Count(q, "?"))
		if strings.Contains(q, "?12") {
			args = make([]any, 12)
		}
		err := s.QueryRows("EXPLAIN QUERY PLAN "+q, args, func(scan func(...any) error) error {
			var id, parent, unused int
			var step string
			if err := scan(&id, &parent, &unused, &step); err != nil {
				return err
			}
			ordered := strings.Contains(step, "USING COVERING INDEX history_until") // its first entry is wanted
			if strings.HasPrefix(step, "SCAN") && !ordered && !strings.Contains(q, "count(*) FROM (SELECT 1 FROM slot LIMIT 1)") ||
				strings.Contains(step, "TEMP B-TREE") && !strings.Contains(q, "bit_seq DESC") {
				t.Errorf("%s\n  %s", strings.Join(strings.Fields(q), " "), step)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	t.Logf("%d statements", len(queries))
	return nil
}

// A grant changes a handful of rows, whatever the layout.
func TestHugeLayoutStaysSmall(t *testing.T) {
	ring.All(t)
	huge := provider.DefaultTerms()
	huge.Timeline.BitTS, huge.Timeline.EpochMS = 33, time.Now().UnixMilli()-1000
	huge = huge.WithBitSeq(0)
	services := provider.Services{Default: huge, Named: map[string]provider.Terms{
		"middle": huge.WithBitSeq(10), "coarsest": huge.WithBitSeq(27),
	}}
	p := mustOpen(t, Config{Path: newPath(memoryDir(t)), Services: services})
	for i := range 60 {
		service := []string{"", "middle", ""}[i%3]
		if i == 0 {
			service = "coarsest"
		}
		if _, err := p.Acquire(context.Background(), provider.AcquireRequest{Service: service, ThroughputPerMS: 5}); err != nil {
			t.Fatal(err)
		}
	}
	var segments int
	if _, err := sqlitefile.Read(context.Background(), p.file, func(s *sqlitefile.Session) (struct{}, error) {
		return struct{}{}, s.QueryRow("SELECT count(*) FROM segment", nil, &segments)
	}); err != nil {
		t.Fatal(err)
	}
	if segments > 1000 {
		t.Errorf("%d segments for some 200 grants", segments)
	}
}
