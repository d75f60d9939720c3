package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		os.Exit(runChild(name))
	}
	await.Main(m)
}

var files atomic.Int64

func newPath(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("leases-%d.db", files.Add(1)))
}

func mustOpen(t *testing.T, cfg Config) *Provider {
	t.Helper()
	p, err := Open(context.Background(), cfg)
	must.Succeed(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func defaultServices() provider.Services {
	return provider.Services{Default: provider.DefaultTerms()}
}

func mustAcquire(t *testing.T, p *Provider) lease.Lease {
	t.Helper()
	leases, err := p.Acquire(context.Background(), provider.AcquireRequest{})
	must.Succeed(t, err)
	return leases[0]
}

func releaseOf(l lease.Lease) provider.ReleaseRequest {
	return providertest.SignedRelease(l, time.Now().UnixMilli())
}

func isHeld(t *testing.T, p *Provider, l lease.Lease) bool {
	t.Helper()
	lost, err := provider.Verify(context.Background(), p, "", []lease.Lease{l})
	must.Succeed(t, err)
	return len(lost) == 0
}

// read calls op in the provider's session.
func read(t *testing.T, p *Provider, op func(*sqlitefile.Session) error) {
	t.Helper()
	if _, err := sqlitefile.Read(context.Background(), p.file, func(s *sqlitefile.Session) (struct{}, error) { return struct{}{}, op(s) }); err != nil {
		t.Fatal(err)
	}
}

// Seed 000-7.3-2.
func TestConformance(t *testing.T) {
	ring.All(t)
	providertest.Run(t, factory(t, nil))
}

// A lease file answers as memory does.
func TestAnswersAsMemoryDoes(t *testing.T) {
	providertest.Differential(t, providertest.Memory, factory(t, func(int64) int64 { return 0 }))
}

// factory makes stores whose files are in memory. random says where rings begin.
func factory(t *testing.T, random func(n int64) int64) providertest.Factory {
	dir, live := ring.Dir(t), disktest.Memory(t)
	return func(t *testing.T) providertest.Store {
		var clock atomic.Int64
		path := newPath(dir)
		var first *Provider
		return providertest.Store{
			Open: func(services provider.Services) (provider.Provider, error) {
				p, err := Open(context.Background(), Config{Path: path, Services: services, NowMS: clock.Load, LiveDir: live, Random: random})
				if err != nil {
					return nil, err
				}
				if first == nil {
					first = p
				}
				return p, nil
			},
			SetClock:   clock.Store,
			Checks:     25,
			Check:      func() error { return checkIndex(first) },
			CrashSteps: []string{sqlitefile.StepBegun, sqlitefile.StepWritten, sqlitefile.StepCommitted, sqlitefile.StepWatermarked},
			Empty:      func() error { return putEmptyBack(path, live, clock.Load) },
			Crash: func(step string, services provider.Services, req provider.AcquireRequest) error {
				return crashAt(t, childArgs{Path: path, Services: services, Request: req, Step: step, ClockMS: clock.Load(), LiveDir: live})
			},
		}
	}
}

// putEmptyBack puts the backup of an empty file in the place of one that no provider has open.
func putEmptyBack(path, live string, nowMS func() int64) error {
	ctx := context.Background()
	empty, backup := newPath(filepath.Dir(path)), newPath(filepath.Dir(path))
	p, err := Open(ctx, Config{Path: empty, Services: defaultServices(), NowMS: nowMS, LiveDir: live})
	if err != nil {
		return err
	}
	return errors.Join(p.Backup(ctx, backup), p.Close(), os.Rename(backup, path))
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
		return compareLine(whole, segments, marks)
	}, nil)
}

// compareLine compares a line that a store keeps with what its records say.
func compareLine(whole pool.Segment, segments []pool.Segment, marks []pool.Mark) error {
	next := whole.Low
	for _, s := range segments {
		if s.Low != next || s.End <= s.Low {
			return fmt.Errorf("the segment %+v does not follow %d", s, next-1)
		}
		next = s.End
		// No slot begins or ends within a segment but those that others were
		// granted over, so its ends stand for all of it.
		for _, low := range []int64{s.Low, s.End - 1} {
			var end int64
			for _, m := range marks {
				if slot := m.Slot(); slot.Start <= low && low < slot.End {
					end = max(end, m.End)
				}
			}
			if end != s.FreeAt {
				return fmt.Errorf("the segment %+v: %d is free at %d by the records", s, low, end)
			}
		}
	}
	if next != whole.End {
		return fmt.Errorf("the line ends at %d", next-1)
	}
	return nil
}

// TestRecordsOutweighTheLine: a slot whose record has not ended is not granted again, and nor is
// one that overlaps it, whatever the line says.
func TestRecordsOutweighTheLine(t *testing.T) {
	coarse, fine := provider.DefaultTerms(), provider.DefaultTerms().WithBitSeq(snowflake.DefaultBitSeq-1)
	coarse.IDs, fine.IDs = provider.IDRange{Low: 0, End: 1}, provider.IDRange{Low: 1, End: 2}
	services := provider.Services{Default: coarse, Named: map[string]provider.Terms{"fine": fine}}
	for _, service := range [][2]string{{"fine", ""}, {"", "fine"}, {"", ""}} {
		path := newPath(ring.Dir(t))
		p := mustOpen(t, Config{Path: path, Services: services})
		if _, err := p.Acquire(t.Context(), provider.AcquireRequest{Service: service[0]}); err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, p.Close())
		execute(t, path, "UPDATE segment SET free_at = 0")
		p = mustOpen(t, Config{Path: path, Services: services})
		leases, err := p.Acquire(t.Context(), provider.AcquireRequest{Service: service[1]})
		if !errors.Is(err, sqlitefile.ErrInconsistent) {
			t.Errorf("%q: %v was granted, with the error %v", service, leases, err)
		}
	}
}

// Callers at once share commits, and each gets what it would get alone: a lease, the
// refusal of a full pool, the refusal of a forged extension.
func TestManyTogether(t *testing.T) {
	const slots, callers = 200, 250
	services := defaultServices()
	services.Default.IDs = provider.IDRange{Low: 0, End: slots}
	p := mustOpen(t, Config{Path: newPath(ring.Dir(t)), Services: services})
	commits := 0
	p.at = func(step string) error {
		if step == sqlitefile.StepCommitted {
			commits++
		}
		return nil
	}
	var mu sync.Mutex
	leases := map[int64]lease.Lease{}
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			granted, err := p.Acquire(context.Background(), provider.AcquireRequest{RequestID: provider.NewSecret()})
			var full *provider.FullError
			if err != nil && !errors.As(err, &full) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, l := range granted {
				leases[l.ID] = l
			}
		})
	}
	all.Wait()
	for id, l := range leases {
		all.Go(func() {
			forged := id%2 == 1
			if forged {
				l.Secret = provider.NewSecret()
			}
			longer, err := provider.Extend(context.Background(), p, "", l)
			if !forged && (err != nil || longer.Key() != l.Key()) || forged && !errors.Is(err, provider.ErrBadSignature) {
				t.Errorf("forged %v: %v, %v", forged, longer, err)
			}
		})
	}
	all.Wait()
	counted, err := p.Counters(context.Background(), "")
	if err != nil || len(leases) != slots || counted[provider.CountGranted] != slots || counted[provider.CountFull] != callers-slots ||
		counted[provider.CountExtended] != slots/2 || counted[provider.CountNotOwner] != slots/2 {
		t.Errorf("%d leases, counted %v (%v)", len(leases), counted, err)
	}
	if commits >= callers {
		t.Errorf("%d operations in %d commits", callers+slots, commits)
	}
	if err := checkIndex(p); err != nil {
		t.Error(err)
	}
}

func TestNewFileBeginsAtRandom(t *testing.T) {
	dir := ring.Dir(t)
	seen := map[int64]bool{}
	for range 5 {
		seen[mustAcquire(t, mustOpen(t, Config{Path: newPath(dir), Services: defaultServices()})).ID] = true
	}
	if len(seen) < 2 {
		t.Errorf("five new files all began at machine ID %v", seen)
	}
}

// What ended long ago is forgotten, a little with each grant. A lease that is extended
// for longer than the history is kept stays in it, from its beginning.
func TestHistoryIsForgotten(t *testing.T) {
	ring.All(t)
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1000)
	p := mustOpen(t, Config{Path: newPath(ring.Dir(t)), Services: defaultServices(), NowMS: clock.Load})
	ctx := context.Background()
	acquire := func() []lease.Lease {
		t.Helper()
		leases, err := p.Acquire(ctx, provider.AcquireRequest{ThroughputPerMS: 256 * 4})
		must.Succeed(t, err)
		return leases
	}
	rows := func(table string) (n int) {
		t.Helper()
		read(t, p, func(s *sqlitefile.Session) error { return s.QueryRow("SELECT count(*) FROM "+table, nil, &n) })
		return n
	}
	located := func(l lease.Lease, want int) {
		t.Helper()
		if held, err := p.Locate(ctx, "", l.Slot().Start, l.Created); err != nil || len(held) != want {
			t.Errorf("Locate of %v gave %v and the error %v, want %d", l, held, err, want)
		}
	}
	first := acquire()
	for range 4 {
		acquire()
	}
	long, end := first[0], clock.Load()+(historyKept+time.Hour).Milliseconds()
	for clock.Load() < end {
		var err error
		clock.Add(provider.DefaultTerm.Milliseconds() * 9 / 10)
		if long, err = provider.Extend(ctx, p, "", long); err != nil {
			t.Fatal(err)
		}
	}
	if got := rows("history"); got != 20 {
		t.Errorf("history has %d rows, want 20", got)
	}
	// Each acquire of four forgets eight, as long as there are so many.
	for i, want := range []int{20 + 4 - 8, 16 + 4 - 8, 12 + 4 - 3, 13 + 4} {
		acquire()
		if got := rows("history"); got != want {
			t.Errorf("after acquire %d history has %d rows, want %d", i, got, want)
		}
	}
	if got := rows("slot"); got != 20+16 {
		t.Errorf("%d records, want 36: they are never deleted", got)
	}
	located(long, 1)
	located(first[1], 0)
	clock.Add((historyKept + time.Hour).Milliseconds())
	for range 4 {
		acquire()
	}
	located(long, 0)
}

// Every statement of an operation finds its rows through an index: nothing reads a table
// from end to end, or sorts. The exception is the building of a line that is missing.
func TestStatementsUseIndexes(t *testing.T) {
	base := provider.DefaultTerms()
	services := provider.Services{Default: base, Named: map[string]provider.Terms{"coarse": base.WithBitSeq(10)}}
	p := mustOpen(t, Config{Path: newPath(ring.Dir(t)), Services: services})
	ctx := context.Background()
	for _, service := range []string{"", "coarse", ""} {
		leases, err := p.Acquire(ctx, provider.AcquireRequest{Service: service, ThroughputPerMS: 2000, RequestID: provider.NewSecret()})
		must.Succeed(t, err)
		l := leases[0]
		release := releaseOf(l)
		release.BitSeq = provider.AnyBitSeq
		_, extendErr := provider.Extend(ctx, p, "", l)
		held, locateErr := p.Locate(ctx, "", l.Slot().Start, l.Created)
		_, countErr := p.Counters(ctx, "")
		_, listErr := p.List(ctx, "")
		if err := errors.Join(extendErr, locateErr, countErr, listErr, p.Release(ctx, release)); err != nil || len(held) != 1 {
			t.Fatal(held, err)
		}
	}
	read(t, p, func(s *sqlitefile.Session) error { return checkPlans(t, s) })
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
