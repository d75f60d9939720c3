package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
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

// What was saved and raised is what is there, also after reopening, whatever
// the order; compared with a model that is two maps.
func TestRoundTrip(t *testing.T) {
	root := memoryDir(t)
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		dir := filepath.Join(root, fmt.Sprint(runs))
		defer os.RemoveAll(dir)
		saved, marks := map[string]Saved{}, map[string]int64{}
		names := []string{"default", "zweite ✿", strings.Repeat("n", MaxServiceName)}
		open := func() *State {
			s, err := Open(dir, testOptions())
			if err != nil {
				t.Fatal(err)
			}
			if notes := s.Notes(); len(notes) != 0 {
				t.Fatalf("notes: %q", notes)
			}
			return s
		}
		s := open()
		defer func() { s.Close() }()
		service := func() (string, *Service) {
			name := rapid.SampledFrom(names).Draw(t, "service")
			sv, err := s.Service(name)
			if err != nil {
				t.Fatal(err)
			}
			return name, sv
		}
		t.Repeat(map[string]func(*rapid.T){
			"save": func(t *rapid.T) {
				name, sv := service()
				saved[name] = drawSaved(t)
				if err := sv.Save(saved[name]); err != nil {
					t.Fatal(err)
				}
			},
			"raise": func(t *rapid.T) {
				name, sv := service()
				ms := rapid.Int64Range(-1<<62, 1<<62).Draw(t, "mark")
				sv.RaiseMark(ms)
				marks[name] = max(marks[name], ms)
			},
			"reopen": func(t *rapid.T) {
				if err := s.Close(); err != nil {
					t.Fatal(err)
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

// A caller may change what it gave to Save or got from Load.
func TestSavedIsCopied(t *testing.T) {
	dir, want := newState(t)
	sv := mustService(t, mustOpen(t, dir, testOptions()), "default")
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
	dir, want := newState(t)
	sv := mustService(t, mustOpen(t, dir, testOptions()), "default")
	malformed, foreign, odd := testLease(1, 1), testLease(1, 1), testLease(1, 1)
	malformed.ID = 1 << 30
	foreign.EpochMS++
	odd.Secret = "\xff"
	for name, saved := range map[string]Saved{
		"malformed lease":    savedWith(malformed),
		"another timeline":   savedWith(foreign),
		"secret not UTF-8":   savedWith(odd),
		"malformed cached":   {Cached: &malformed, Timeline: snowflake.DefaultTimeline(), Source: SourceLease},
		"no source":          {Timeline: snowflake.DefaultTimeline()},
		"unknown source":     {Timeline: snowflake.DefaultTimeline(), Source: "moon"},
		"no timeline":        {Source: SourceLease},
		"offer of no bits":   {Offered: &snowflake.Timeline{}},
		"lease, no timeline": {Held: []lease.Lease{testLease(1, 1)}},
	} {
		if err := sv.Save(saved); err == nil {
			t.Errorf("%s: saved", name)
		} else if strings.Contains(err.Error(), "secret-") {
			t.Errorf("%s: the error shows a secret: %v", name, err)
		}
	}
	if got := sv.Load(); !reflect.DeepEqual(got, want) {
		t.Errorf("Load gives %+v, want %+v", got, want)
	}
}

func TestServiceNames(t *testing.T) {
	s := mustOpen(t, t.TempDir(), testOptions())
	for _, name := range []string{"", "a\x00b", "a\nb", "\xff", strings.Repeat("n", MaxServiceName+1)} {
		if _, err := s.Service(name); err == nil {
			t.Errorf("service %q was accepted", name)
		}
	}
	first := mustService(t, s, "a")
	if second := mustService(t, s, "a"); second != first {
		t.Error("two objects stand for one service")
	}
}

func TestTooManyServices(t *testing.T) {
	for name, s := range map[string]*State{"file": mustOpen(t, t.TempDir(), testOptions()), "memory": Ephemeral()} {
		for i := range MaxServices {
			mustService(t, s, fmt.Sprint("s", i))
		}
		_, err := s.Service("one more")
		if !errors.Is(err, ErrTooManyServices) || !strings.Contains(err.Error(), "256") {
			t.Errorf("%s: %v", name, err)
		}
		mustService(t, s, "s0")
	}
}

func TestFilePermissions(t *testing.T) {
	dir, _ := newState(t)
	s := mustOpen(t, dir, testOptions())
	mustSave(t, mustService(t, s, "default"), Saved{})
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v", info.Mode())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
		if info, _ := entry.Info(); info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", entry.Name(), info.Mode())
		}
	}
	if want := []string{"lock", "marks", "state.db", "state.db-shm", "state.db-wal"}; !slices.Equal(names, want) {
		t.Errorf("the directory holds %v, want %v", names, want)
	}
}

// A path with characters that mean something in a URI is a path all the same.
func TestOddDirectoryNames(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"a b", "100%", "a?mode=memory", "a#b", "%41", "ü", "x:y", "a&b=c"} {
		dir := filepath.Join(root, name)
		s := mustOpen(t, dir, testOptions())
		mustSave(t, mustService(t, s, "default"), savedWith(testLease(1, 1)))
		mustClose(t, s)
		if _, err := os.Stat(filepath.Join(dir, "state.db")); err != nil {
			t.Error(err)
		}
		if got := mustService(t, mustOpen(t, dir, testOptions()), "default").Load(); len(got.Held) != 1 {
			t.Errorf("%q: %+v", name, got)
		}
	}
}

// Run syncs what changed and nothing else. Removing the file makes each sync
// show itself as an error.
func TestRunSyncsOnlyChanges(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	var failures []error
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(failures) }
	opts := testOptions()
	opts.OnSyncError = func(err error) { mu.Lock(); defer mu.Unlock(); failures = append(failures, err) }
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	sv := mustService(t, s, "default")
	if err := errors.Join(s.marks.sync(), os.Remove(filepath.Join(dir, marksName))); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(10*time.Second + time.Millisecond)
		if n := count(); n != 0 {
			t.Errorf("%d syncs without a change", n)
		}
		for range 3 {
			sv.RaiseMark(sv.Mark() + 1)
			time.Sleep(5 * syncInterval)
		}
		if n := count(); n != 3 {
			t.Errorf("3 changes led to %d syncs", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	wantFileError(t, failures[0], filepath.Join(dir, marksName), "was removed or replaced")
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestAfterClose(t *testing.T) {
	dir, want := newState(t)
	s := mustOpen(t, dir, testOptions())
	sv := mustService(t, s, "default")
	sv.RaiseMark(1_900_000_000_000)
	mustClose(t, s)
	if err := sv.Save(Saved{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Save: %v", err)
	}
	if _, err := s.Service("default"); !errors.Is(err, ErrClosed) {
		t.Errorf("Service: %v", err)
	}
	if mark := sv.Mark(); mark != 1_900_000_000_000 {
		t.Errorf("Mark is %d", mark)
	}
	if got := sv.Load(); !reflect.DeepEqual(got, want) {
		t.Errorf("Load gives %+v", got)
	}
	if err := s.Run(canceled()); err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "RaiseMark of service default after Close") {
			t.Errorf("RaiseMark panicked with: %s", text)
		}
	}()
	sv.RaiseMark(1)
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestEphemeral(t *testing.T) {
	s := Ephemeral()
	if notes := s.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "nothing survives a restart") {
		t.Errorf("notes: %q", notes)
	}
	sv := mustService(t, s, "default")
	want := savedWith(testLease(1, 1))
	mustSave(t, sv, want)
	sv.RaiseMark(5)
	sv.RaiseMark(3)
	if got := sv.Load(); !reflect.DeepEqual(got, want) || sv.Mark() != 5 {
		t.Errorf("Load gives %+v, Mark %d", got, sv.Mark())
	}
	if err := s.Run(canceled()); err != nil {
		t.Errorf("Run: %v", err)
	}
	mustClose(t, s)
	if sv.Mark() != 5 {
		t.Errorf("Mark after Close is %d", sv.Mark())
	}
}

func TestConcurrentUse(t *testing.T) {
	for name, s := range map[string]*State{"file": mustOpen(t, t.TempDir(), testOptions()), "memory": Ephemeral()} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var background, workers sync.WaitGroup
			background.Go(func() { s.Run(ctx) })
			for i := range 8 {
				workers.Go(func() {
					shared, err := s.Service("shared")
					if err != nil {
						t.Error(err)
						return
					}
					own, err := s.Service(fmt.Sprint("own", i))
					if err != nil {
						t.Error(err)
						return
					}
					for v := range int64(20_000) {
						before := shared.Mark()
						shared.RaiseMark(v*8 + int64(i))
						if now := shared.Mark(); now < before || now < v*8+int64(i) {
							t.Errorf("the mark went from %d to %d when raised to %d", before, now, v*8+int64(i))
							return
						}
						own.RaiseMark(v)
						if v%5000 == 0 {
							if err := own.Save(savedWith(testLease(int64(i), v))); err != nil {
								t.Error(err)
							}
							if err := s.marks.sync(); err != nil {
								t.Error(err)
							}
							own.Load()
						}
					}
				})
			}
			workers.Wait()
			if mark := mustService(t, s, "shared").Mark(); mark != 19_999*8+7 {
				t.Errorf("the mark is %d", mark)
			}
			cancel()
			background.Wait()
		})
	}
}

func TestRaiseMarkDoesNotAllocate(t *testing.T) {
	sv := mustService(t, mustOpen(t, t.TempDir(), testOptions()), "default")
	v := int64(0)
	if n := testing.AllocsPerRun(1000, func() { v++; sv.RaiseMark(v) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func wantFileError(t *testing.T, err error, path, text string) {
	t.Helper()
	var e *FileError
	switch {
	case !errors.As(err, &e):
		t.Errorf("error is %v, want a FileError about %s", err, path)
	case e.Path != path || e.Remedy == "" || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n"):
		t.Errorf("error is %q, want one line about %s with %q and a remedy", err, path, text)
	}
	if errors.Is(err, fs.ErrNotExist) && e != nil && e.Remedy == "" {
		t.Errorf("no remedy: %v", err)
	}
}

func BenchmarkRaiseMark(b *testing.B) {
	sv := mustService(b, mustOpen(b, b.TempDir(), testOptions()), "default")
	v := int64(0)
	for b.Loop() {
		v++
		sv.RaiseMark(v)
	}
}

func BenchmarkOpenNew(b *testing.B) {
	root := b.TempDir()
	for i := 0; b.Loop(); i++ {
		s, err := Open(filepath.Join(root, fmt.Sprint(i)), Options{})
		if err != nil {
			b.Fatal(err)
		}
		mustService(b, s, "default")
		b.StopTimer()
		mustClose(b, s)
		b.StartTimer()
	}
}

func BenchmarkOpenExisting(b *testing.B) {
	dir, _ := newState(b)
	for b.Loop() {
		s, err := Open(dir, testOptions())
		if err != nil {
			b.Fatal(err)
		}
		mustService(b, s, "default")
		b.StopTimer()
		mustClose(b, s)
		b.StartTimer()
	}
}

func BenchmarkSave(b *testing.B) {
	sv := mustService(b, mustOpen(b, b.TempDir(), testOptions()), "default")
	for b.Loop() {
		mustSave(b, sv, savedWith(testLease(1, 1)))
	}
}
