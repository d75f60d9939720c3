package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
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

// checkIndex compares the tables that a free slot is found by with what the
// records say, machine ID by machine ID.
func checkIndex(p *Provider) error {
	return p.write(context.Background(), func(t *transaction) error {
		pl, err := findPool(t.Session, provider.DefaultPool, nil)
		if errors.Is(err, errNoPool) {
			return nil
		}
		if err != nil {
			return err
		}
		records, err := t.endsInOrder(pl)
		if err != nil {
			return err
		}
		rings, err := t.rings(pl.id)
		if err != nil {
			return err
		}
		for _, r := range rings {
			if err := t.checkRing(&r, records); err != nil {
				return fmt.Errorf("ring %+v: %w", r, err)
			}
		}
		return nil
	}, nil)
}

func (t *transaction) checkRing(r *ring, records []recordEnd) error {
	finer := 0
	end := func(id int64) (end int64) {
		slot := snowflake.Slot{Start: id << r.bitSeq, End: (id + 1) << r.bitSeq}
		for _, rec := range records {
			if slot.Overlaps(snowflake.Slot{Start: rec.start, End: rec.start + 1<<rec.bitSeq}) {
				end = max(end, rec.until)
				if rec.bitSeq < r.bitSeq {
					finer++
				}
			}
		}
		return end
	}
	next := r.low
	err := t.QueryRows("SELECT low, high, free_at FROM run WHERE ring = ? ORDER BY low", []any{r.id}, func(scan func(...any) error) error {
		var n run
		if err := scan(&n.low, &n.high, &n.freeAt); err != nil {
			return err
		}
		if n.low != next || n.high < n.low {
			return fmt.Errorf("the run %+v does not follow machine ID %d", n, next-1)
		}
		for ; next <= n.high; next++ {
			if want := end(next); want != n.freeAt {
				return fmt.Errorf("the run %+v: machine ID %d is free at %d by the records", n, next, want)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if next != r.high+1 {
		return fmt.Errorf("the runs end at %d", next-1)
	}
	var inside int
	if err := t.QueryRow("SELECT count(*) FROM inside WHERE ring = ?", []any{r.id}, &inside); err != nil {
		return err
	}
	if inside != finer {
		return fmt.Errorf("%d finer records are noted, want %d", inside, finer)
	}
	return nil
}

// A ring that is built from the records must be the one that was kept up to
// date all the time; checkIndex after dropping rings at random says so.
func TestRingsAreDroppedAndRebuilt(t *testing.T) {
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1000)
	base := provider.DefaultTerms()
	base.Timeline.BitTS = snowflake.ValueBits - 9
	base.Term, base.Quarantine = 100*time.Millisecond, 0
	base = base.WithBitSeq(1)
	named := map[string]provider.Terms{}
	for i := range int64(3 * maxRings) {
		terms := base.WithBitSeq(int(i % 4))
		terms.IDs = provider.IDRange{Low: i % 7, End: 4 + i%7}
		terms.Term += time.Duration(i%7) * 10 * time.Millisecond
		named[fmt.Sprint(i)] = terms
	}
	p := mustOpen(t, Config{
		Path: newPath(memoryDir(t)), Services: provider.Services{Default: base, Named: named}, NowMS: clock.Load,
	})
	ctx := context.Background()
	random := rand.New(rand.NewPCG(1, 2))
	var held []lease.Lease
	rounds := 300
	if testing.Short() {
		rounds = 100
	}
	for i := range rounds {
		service := fmt.Sprint(random.IntN(3 * maxRings))
		leases, err := p.Acquire(ctx, provider.AcquireRequest{Service: service, ThroughputPerMS: random.Int64N(30)})
		var full *provider.FullError
		if err != nil && !errors.As(err, &full) {
			t.Fatal(err)
		}
		held = append(held, leases...)
		for range random.IntN(3) {
			if len(held) == 0 {
				break
			}
			n := random.IntN(len(held))
			l, at := held[n], clock.Load()+random.Int64N(60)-40
			held = append(held[:n], held[n+1:]...)
			err := p.Release(ctx, provider.ReleaseRequest{ID: l.ID, BitSeq: l.BitSeq, TimestampMS: at, Signature: lease.Sign(l.Secret, l.ID, at)})
			if err != nil && !errors.Is(err, provider.ErrBadSignature) {
				t.Fatal(err)
			}
		}
		if err := checkIndex(p); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
		switch random.IntN(20) {
		case 0: // ahead and, some time later, back
			clock.Add(1000)
		case 1:
			clock.Add(-900)
		default:
			clock.Add(random.Int64N(40))
		}
	}
	var rings int
	_, err := sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) (struct{}, error) {
		return struct{}{}, s.QueryRow("SELECT count(*) FROM ring", nil, &rings)
	})
	if err != nil || rings != maxRings {
		t.Errorf("there are %d rings (%v), want %d", rings, err, maxRings)
	}
}

// Should the index ever contradict the records, the records hold: nothing is
// granted that they say is taken.
func TestRecordsOutweighTheIndex(t *testing.T) {
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
			if err := acquire(second); err == nil { // and its ring exists
				t.Fatal("granted over another grant")
			}
			if _, err := sqlitefile.Read(context.Background(), p.file, func(s *sqlitefile.Session) (struct{}, error) {
				return struct{}{}, s.ExecOnce("UPDATE run SET free_at = 0")
			}); err != nil {
				t.Fatal(err)
			}
			if err := acquire(second); !errors.Is(err, errInconsistent) {
				t.Errorf("%q over %q: the error is %v, want errInconsistent", second, first, err)
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
// building of a ring, once for each layout and range.
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
	var runs int
	if _, err := sqlitefile.Read(context.Background(), p.file, func(s *sqlitefile.Session) (struct{}, error) {
		return struct{}{}, s.QueryRow("SELECT count(*) FROM run", nil, &runs)
	}); err != nil {
		t.Fatal(err)
	}
	if runs > 1000 {
		t.Errorf("%d runs for some 200 grants in three rings", runs)
	}
}
