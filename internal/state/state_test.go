package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func drawTimeline(t *rapid.T, label string) snowflake.Timeline {
	return snowflake.Timeline{
		EpochMS: rapid.Int64Range(-1<<40, 1<<50).Draw(t, label+" epoch"),
		BitTS:   rapid.IntRange(1, 60).Draw(t, label+" bit_ts"),
	}
}

func drawLease(t *rapid.T, tl snowflake.Timeline, label string) lease.Lease {
	seq := rapid.IntRange(0, tl.LowBits()-1).Draw(t, label+" bit_seq")
	l := lease.Lease{EpochMS: tl.EpochMS, BitReserve: 1, BitTS: tl.BitTS, BitID: tl.LowBits() - seq, BitSeq: seq,
		Created: rapid.Int64Range(0, 1<<60).Draw(t, label+" created"),
		Secret:  rapid.StringN(1, 20, 80).Draw(t, label+" secret")}
	l.Expired = l.Created + rapid.Int64Range(1, 1<<60).Draw(t, label+" term")
	l.ReservedUntil = l.Expired + rapid.Int64Range(0, 1<<60).Draw(t, label+" quarantine")
	l.ID = rapid.Int64Range(0, l.Layout().MachineIDs()-1).Draw(t, label+" id")
	return l
}

func drawSaved(t *rapid.T) Saved {
	var s Saved
	s.Origin = rapid.SampledFrom([]string{"", "sqlite:/a", "sqlite:/b?ids=0-9"}).Draw(t, "origin")
	s.Source = rapid.SampledFrom([]TimelineSource{SourceNone, SourceConfig, SourceLease}).Draw(t, "source")
	if s.Source != SourceNone {
		s.Timeline = drawTimeline(t, "timeline")
		for i := range rapid.IntRange(0, 4).Draw(t, "held") {
			s.Held = append(s.Held, drawLease(t, s.Timeline, fmt.Sprint("held", i)))
		}
		if rapid.Bool().Draw(t, "cached?") {
			l := drawLease(t, s.Timeline, "cached")
			s.Cached = &l
		}
	}
	if rapid.Bool().Draw(t, "offered?") {
		tl := drawTimeline(t, "offered")
		s.Offered = &tl
	}
	return s
}

// Saves and raised marks are there after a stop and after a crash, in any order; compared with a
// model that is two maps. A boot costs the leases alone.
func TestRoundTrip(t *testing.T) {
	ring.All(t)
	root := disktest.Memory(t)
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		p := place{filepath.Join(root, fmt.Sprint(runs)), filepath.Join(root, fmt.Sprint(runs, "-live"))}
		defer os.RemoveAll(p.dir)
		defer os.RemoveAll(p.live)
		saved, marks := map[string]Saved{}, map[string]int64{}
		names := []string{"default", "zweite ✿", strings.Repeat("n", MaxServiceName)}
		boot := 0
		open := func() *State {
			opts := optionsOf("m", fmt.Sprint("boot", boot))
			opts.Live = p.live
			s, err := Open(context.Background(), p.dir, opts)
			must.Succeed(t, err)
			return s
		}
		s := open()
		crash := func() {
			s.mu.Lock()
			s.closed = true
			s.mu.Unlock()
			must.Succeed(t, errors.Join(s.closeLive(), s.disk.Close()))
		}
		defer func() { crash() }()
		service := func() (string, *Service) {
			name := rapid.SampledFrom(names).Draw(t, "service")
			sv, err := s.Service(name)
			must.Succeed(t, err)
			return name, sv
		}
		t.Repeat(map[string]func(*rapid.T){
			"save": func(t *rapid.T) {
				name, sv := service()
				saved[name] = drawSaved(t)
				must.Succeed(t, sv.Save(saved[name]))
			},
			"raise": func(t *rapid.T) {
				name, sv := service()
				ms := rapid.Int64Range(-1<<62, maxMark).Draw(t, "mark")
				sv.RaiseMark(ms)
				marks[name] = max(marks[name], ms)
			},
			"restart": func(t *rapid.T) {
				must.Succeed(t, s.Close())
				s = open()
			},
			"crash": func(t *rapid.T) { crash(); s = open() },
			"boot": func(t *rapid.T) {
				must.Succeed(t, errors.Join(s.Close(), os.RemoveAll(p.live)))
				boot++
				for name, was := range saved {
					saved[name] = was.withoutLeases()
				}
				s = open()
			},
			"": func(t *rapid.T) {
				name, sv := service()
				if got := sv.Load(); !reflect.DeepEqual(got, saved[name]) {
					t.Fatalf("Load gives\n%+v, want\n%+v", got, saved[name])
				}
				if got := sv.Mark(); got != marks[name] {
					t.Fatalf("Mark is %d, want %d", got, marks[name])
				}
			},
		})
	})
}

// A caller may change the values that it gave to Save or got from Load.
func TestSavedIsCopied(t *testing.T) {
	p, want := usedPlace(t)
	sv := mustOpen(t, p).service("default")
	for range 2 {
		got := sv.Load()
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("Load gives %+v, want %+v", got, want)
		}
		got.Held[0].ID, got.Cached.ID, got.Offered.BitTS = 99, 99, 1
	}
	given := want.clone()
	mustSave(t, sv, given)
	given.Held[0].ID = 99
	if got := sv.Load(); !reflect.DeepEqual(got, want) {
		t.Fatalf("Load gives %+v, want %+v", got, want)
	}
}

func TestSaveRefusesWhatItCouldNotLoad(t *testing.T) {
	p, want := usedPlace(t)
	sv := mustOpen(t, p).service("default")
	malformed, foreign, odd := testLease(1, 1), testLease(1, 1), testLease(1, 1)
	malformed.ID = 1 << 30
	foreign.EpochMS++
	odd.Secret = "\xff"
	for name, saved := range map[string]Saved{
		"malformed lease":    savedWith(malformed),
		"another timeline":   savedWith(foreign),
		"secret not UTF-8":   savedWith(odd),
		"malformed cached":   {Cached: &malformed, Timeline: testTimeline, Source: SourceLease},
		"no source":          {Timeline: testTimeline},
		"unknown source":     {Timeline: testTimeline, Source: "moon"},
		"no timeline":        {Source: SourceLease},
		"offer of no bits":   {Offered: &snowflake.Timeline{}},
		"leaves no timeline": {Timeline: testTimeline, Source: SourceLease, From: &snowflake.Timeline{}},
		"leaves it alone":    {Timeline: testTimeline, Source: SourceConfig, From: &testTimeline},
		"leaves with leases": {Timeline: testTimeline, Source: SourceLease, From: &testTimeline, Held: []lease.Lease{testLease(1, 1)}},
		"lease, no timeline": {Held: []lease.Lease{testLease(1, 1)}},
	} {
		if err := sv.Save(saved); err == nil {
			t.Errorf("%s: saved", name)
		} else if strings.Contains(err.Error(), "secret-") {
			t.Errorf("%s: the error shows a secret: %v", name, err)
		}
	}
	wantLoads(t, sv, want)
}

func TestServiceNames(t *testing.T) {
	s := mustOpen(t, newPlace(t))
	for _, name := range []string{"", "\xff", strings.Repeat("n", MaxServiceName+1)} {
		if _, err := s.Service(name); err == nil {
			t.Errorf("service %q was accepted", name)
		}
	}
	if one, same := s.service("a"), s.service("a"); one != same {
		t.Error("two objects stand for one service")
	}
}

// All slots are of use, and survive a crash.
func TestManyServices(t *testing.T) {
	ring.All(t)
	p := inMemory(t)
	s := mustOpen(t, p)
	name := func(i int) string { return fmt.Sprint("service ", i) }
	for i := range MaxServices {
		sv := s.service(name(i))
		mustSave(t, sv, savedWith(testLease(int64(i), 1)))
		sv.RaiseMark(int64(1000 + i))
	}
	_, err := s.Service("one more")
	if !errors.Is(err, ErrTooManyServices) || !strings.Contains(err.Error(), "256") {
		t.Errorf("one more: %v", err)
	}
	check := func(s *testState) {
		t.Helper()
		for i := range MaxServices {
			sv := s.service(name(i))
			if got := sv.Load().Held; len(got) != 1 || got[0].ID != int64(i) || sv.Mark() != int64(1000+i) {
				t.Fatalf("service %d: %v, mark %d", i, got, sv.Mark())
			}
		}
	}
	s.crash()
	s = mustOpen(t, p)
	s.wantQuiet()
	check(s)

	ephemeral := Ephemeral(Options{})
	for i := range MaxServices {
		if _, err := ephemeral.Service(name(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ephemeral.Service("one more"); !errors.Is(err, ErrTooManyServices) {
		t.Errorf("in memory: %v", err)
	}
}

func TestFilePermissions(t *testing.T) {
	p, _ := usedPlace(t)
	s := mustOpen(t, p)
	mustSave(t, s.service("default"), Saved{})
	folder := p.folder(t)
	for _, dir := range []string{p.dir, p.live, folder} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
	for dir, want := range map[string][]string{p.dir: {"lock", "state"}, folder: {"holder", "leases", "marks"}} {
		entries, err := os.ReadDir(dir)
		must.Succeed(t, err)
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
			if info, _ := entry.Info(); info.Mode() != 0o600 {
				t.Errorf("%s has mode %v", entry.Name(), info.Mode())
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s holds %v, want %v", dir, names, want)
		}
	}
}

func TestAfterClose(t *testing.T) {
	p, want := usedPlace(t)
	s := mustOpen(t, p)
	sv := s.service("default")
	sv.RaiseMark(testMark + 5)
	mustClose(t, s)
	if err := sv.Save(Saved{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Save: %v", err)
	}
	if _, err := s.Service("default"); !errors.Is(err, ErrClosed) {
		t.Errorf("Service: %v", err)
	}
	if err := s.Sync(); !errors.Is(err, ErrClosed) {
		t.Errorf("Sync: %v", err)
	}
	if h := s.Health(); h.Dir != p.dir || h.Err != nil {
		t.Errorf("Health: %+v", h)
	}
	wantState(t, sv, want, testMark+5)
	if err := s.Run(canceled()); err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	wantPanic(t, "RaiseMark of service default after Close", func() { sv.RaiseMark(testMark + 6) })
}

func wantPanic(t *testing.T, text string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if said := fmt.Sprint(recover()); !strings.Contains(said, text) {
			t.Errorf("the panic says: %s", said)
		}
	}()
	f()
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestEphemeral(t *testing.T) {
	s := Ephemeral(Options{})
	sv, err := s.Service("default")
	must.Succeed(t, err)
	want := savedWith(testLease(1, 1))
	mustSave(t, sv, want)
	sv.RaiseMark(5)
	sv.RaiseMark(3)
	wantState(t, sv, want, 5)
	if err := errors.Join(s.Sync(), s.Run(canceled())); err != nil {
		t.Error(err)
	}
	if h := s.Health(); h != (Health{}) {
		t.Errorf("Health: %+v", h)
	}
	if err := s.Close(); err != nil || sv.Mark() != 5 {
		t.Errorf("Close: %v, Mark %d", err, sv.Mark())
	}
	wantPanic(t, "after Close", func() { sv.RaiseMark(6) })
}

// Where the live directory is the one thing that is lacking, order survives a
// crash, and no lease does.
func TestWithoutLiveDirectory(t *testing.T) {
	p := place{dir: filepath.Join(t.TempDir(), "state")}
	s := mustOpen(t, p)
	s.wantSaid(zap.WarnLevel, "no directory in memory")
	sv := s.service("default")
	mustSave(t, sv, savedWith(testLease(1, 1)))
	sv.RaiseMark(testMark)
	if h := s.Health(); h.Live != "" {
		t.Errorf("Health: %+v", h)
	}
	s.crash()
	report := p.inspect(t)
	if report.Live != "" || report.Services[0].Mark != testMark || report.Services[0].Floor != 0 {
		t.Errorf("report: %+v", report)
	}
	s = mustOpen(t, p)
	sv = s.service("default")
	// The timeline was saved, and is there although no second has passed since.
	if got, want := sv.Load(), savedWith(); !reflect.DeepEqual(got, want) || sv.Mark() != testMark {
		t.Errorf("Load gives %+v, Mark %d", got, sv.Mark())
	}

	// The marks are cut short between two lives.
	sv.RaiseMark(testMark + 2)
	must.Succeed(t, s.Sync())
	s.crash()
	must.Succeed(t, os.Truncate(p.disk(marksName), 0))
	s = mustOpen(t, p)
	s.wantSaid(zap.ErrorLevel, "the live state is damaged")
	if mark := s.service("default").Mark(); mark != testMark+2 {
		t.Errorf("the mark is %d", mark)
	}
}

// RaiseMark by one goroutine for each service, as the generators do, beside all
// that the others do.
func TestConcurrentUse(t *testing.T) {
	p := inMemory(t)
	s := mustOpen(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	var background, workers sync.WaitGroup
	background.Go(func() { s.Run(ctx) })
	for i := range 4 {
		workers.Go(func() {
			sv, err := s.Service(fmt.Sprint("s", i))
			if err != nil {
				t.Error(err)
				return
			}
			for v := range int64(20_000) {
				sv.RaiseMark(v)
				if now := sv.Mark(); now != v {
					t.Errorf("the mark is %d when raised to %d", now, v)
					return
				}
				if v%1000 == 0 {
					if err := sv.Save(savedWith(testLease(int64(i), v))); err != nil {
						t.Error(err)
					}
					s.Health()
					if err := s.Sync(); err != nil {
						t.Error(err)
					}
					sv.Load()
				}
			}
		})
	}
	workers.Wait()
	cancel()
	background.Wait()
	s.crash()
	s = mustOpen(t, p)
	for i := range 4 {
		if mark := s.service(fmt.Sprint("s", i)).Mark(); mark != 19_999 {
			t.Errorf("mark %d is %d", i, mark)
		}
	}
	s.wantQuiet()
}

func TestRaiseMarkDoesNotAllocate(t *testing.T) {
	sv := mustOpen(t, newPlace(t)).service("default")
	v := int64(0)
	if n := testing.AllocsPerRun(1000, func() { v++; sv.RaiseMark(v) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestHostIdentity(t *testing.T) {
	identity := hostIdentity()
	if identity.BootID == "" {
		t.Skip("this host shows no boot ID")
	}
	if identity != hostIdentity() {
		t.Error("two readings differ")
	}
	if m := identity.machine(); identity.MachineID != "" && (m == "" || strings.Contains(m, identity.MachineID)) {
		t.Error("the digest shows the machine ID")
	}
}

// A backup of the state directory has no lease to give.
func TestStateDirectoryHoldsNoLease(t *testing.T) {
	p, saved := usedPlace(t)
	for name, content := range contentsOf(t, p.dir) {
		if strings.Contains(content, saved.Held[0].Secret) || strings.Contains(content, "secret") {
			t.Errorf("%s holds a secret:\n%s", name, content)
		}
	}
}
