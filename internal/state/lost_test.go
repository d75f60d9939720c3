package state

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"go.uber.org/zap"
)

// What may happen to the live files under a running daemon. IDs go on in each
// case, nothing ends the process, and a crash afterwards loses nothing where there
// was time for a look, and adopts nothing wrong where there was none.
func TestLostLiveFiles(t *testing.T) {
	ring.All(t)
	in := func(name string, f func(path string) error) func(*testing.T, place, string) {
		return func(t *testing.T, _ place, folder string) {
			must.Succeed(t, f(filepath.Join(folder, name)))
		}
	}
	truncate := func(size int64) func(string) error {
		return func(path string) error { return os.Truncate(path, size) }
	}
	overwrite := func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, make([]byte, len(content)), 0o600)
	}
	byCopy := func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(path+"2", content, 0o600), os.Rename(path+"2", path))
	}
	const removed, replaced = "was removed", "was replaced or overwritten while this process uses it"
	for name, c := range map[string]struct {
		lose func(*testing.T, place, string)
		says string
	}{
		"marks removed":       {in(marksName, os.Remove), "was removed while this process uses it"},
		"marks truncated":     {in(marksName, truncate(0)), replaced},
		"marks cut to a page": {in(marksName, truncate(4096)), replaced},
		"marks zeroed":        {in(marksName, overwrite), replaced},
		"marks replaced":      {in(marksName, byCopy), replaced},
		"leases removed":      {in(leasesName, os.Remove), "was removed while this process uses it"},
		"leases truncated":    {in(leasesName, truncate(0)), replaced},
		"leases zeroed":       {in(leasesName, overwrite), replaced},
		"leases replaced":     {in(leasesName, byCopy), replaced},
		"lock removed":        {in(lockName, os.Remove), removed},
		"lock replaced":       {in(lockName, byCopy), "another lock file has taken the place"},
		"folder removed":      {func(t *testing.T, _ place, folder string) { os.RemoveAll(folder) }, removed},
		"folder moved":        {func(t *testing.T, _ place, folder string) { disktest.Run(t, "mv", folder, folder+"x") }, removed},
		"folder replaced": {func(t *testing.T, _ place, folder string) {
			disktest.Run(t, "cp", "-a", folder, folder+"x")
			disktest.Run(t, "rm", "-rf", folder)
			disktest.Run(t, "mv", folder+"x", folder)
		}, "another directory has its name"},
		"live_dir removed":  {func(t *testing.T, p place, _ string) { os.RemoveAll(p.live) }, removed},
		"live_dir moved":    {func(t *testing.T, p place, _ string) { disktest.Run(t, "mv", p.live, p.live+"x") }, removed},
		"live_dir replaced": {func(t *testing.T, p place, _ string) { os.RemoveAll(p.live); os.Mkdir(p.live, 0o700) }, removed},
	} {
		t.Run(name, func(t *testing.T) {
			for _, looks := range []bool{true, false} {
				p, saved := usedPlace(t)
				s := mustOpen(t, p)
				sv := s.service("default")
				before := s.folder
				tick(t)
				c.lose(t, p, p.folder(t))
				sv.RaiseMark(testMark + 1)
				if !looks {
					_ = sv.Save(saved) // succeeds or not: nothing may come of it but an error
				}
				sv.RaiseMark(testMark + 2)
				if looks {
					s.Look()
					if s.folder == before {
						t.Error("the identity stayed the same")
					}
					s.wantSaid(zap.ErrorLevel, "the live state was lost")
					s.wantSaid(zap.ErrorLevel, c.says)
					s.wantSaid(zap.WarnLevel, "the live state has a new folder")
					s.Look()
					if s.failed != 1 {
						t.Errorf("%d failures were counted", s.failed)
					}
				}
				sv.RaiseMark(testMark + 3)
				must.Succeed(t, s.Sync())
				if h := s.Health(); looks && h.LiveErr != nil {
					t.Errorf("Health: %+v", h)
				}
				s.crash()
				s = mustOpen(t, p)
				sv = s.service("default")
				got := sv.Load()
				if looks && !reflect.DeepEqual(got, saved) {
					t.Errorf("Load gives %+v", got)
				}
				if sv.Mark() != testMark+3 {
					t.Errorf("the mark is %d", sv.Mark())
				}
				s.crash()
			}
		})
	}
}

// Look leaves alone what only looks changed: chmod, touch, a hard link that a
// backup makes.
func TestTouchedLiveFiles(t *testing.T) {
	for _, name := range []string{leasesName, marksName, lockName} {
		for how, touch := range map[string]func(path string) error{
			"chmod": func(path string) error { return errors.Join(os.Chmod(path, 0o400), os.Chmod(path, 0o600)) },
			"touch": func(path string) error { return os.Chtimes(path, time.Now(), time.Now()) },
			"link":  func(path string) error { return os.Link(path, path+"2") },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				p, saved := usedPlace(t)
				s := mustOpen(t, p)
				mustSave(t, s.service("other"), Saved{}) // its floor is that of the state file
				before := s.folder
				must.Succeed(t, touch(filepath.Join(p.folder(t), name)))
				s.Look()
				if s.folder != before {
					t.Errorf("the folder was given up: %s", s.said(zap.WarnLevel))
				}
				s.wantQuiet()
				s.crash()
				wantAdopted(t, p, saved)
			})
		}
	}
}

// Marks that were put back from an older copy are not taken for touched ones,
// whatever is raised between that and the look.
func TestOlderMarksAreNotTouchedOnes(t *testing.T) {
	for name, since := range map[string]func(t *testing.T, s *testState){
		"a raise": func(t *testing.T, s *testState) { s.service("default").RaiseMark(testMark + 10) },
		"a save and a raise": func(t *testing.T, s *testState) {
			mustSave(t, s.service("default"), savedWith(testLease(1, 1)))
			s.service("default").RaiseMark(testMark + 10)
		},
		"a service and a raise": func(t *testing.T, s *testState) {
			s.service("new")
			s.service("default").RaiseMark(testMark + 10)
		},
	} {
		for _, raisedAfter := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				p, _ := usedPlace(t)
				s := mustOpen(t, p)
				s.service("default")
				path := filepath.Join(p.folder(t), marksName)
				older, err := os.ReadFile(path)
				must.Succeed(t, err)
				since(t, s)
				tick(t)
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				must.Succeed(t, err)
				if _, err := f.Write(older); err != nil {
					t.Fatal(err)
				}
				f.Close()
				if raisedAfter {
					s.service("default").RaiseMark(testMark + 11)
				}
				before := s.folder
				s.Look()
				if s.folder == before && !(raisedAfter && name == "a raise") { // there, the words are as they should be
					t.Error("they were taken for touched")
				}
				must.Succeed(t, s.Sync())
				mark := s.service("default").Mark()
				s.crash()
				if sv := mustOpen(t, p).service("default"); sv.Mark() != mark || len(sv.Load().Held) == 0 {
					t.Errorf("mark %d, want %d; %+v", sv.Mark(), mark, sv.Load())
				}
			})
		}
	}
}

// A folder that was moved away while its daemon made a new one has nothing to give
// when it is moved back.
func TestFolderThatComesBack(t *testing.T) {
	p, saved := usedPlace(t)
	backup := copyDir(t, p.dir)
	s := mustOpen(t, p)
	sv := s.service("default")
	folder := p.folder(t)
	disktest.Run(t, "mv", folder, folder+"x")
	sv.RaiseMark(testMark + 1)
	s.Look()
	sv.RaiseMark(testMark + 2)
	disktest.Run(t, "mv", folder+"x", folder)
	// A copy of the state directory from before still has its identity.
	q := place{backup, p.live}
	twin := mustOpen(t, q)
	if twin.folder != filepath.Base(folder) {
		t.Fatal("the copy has another identity: the test tests nothing")
	}
	wantLoads(t, twin.service("default"), saved.withoutLeases())
	twin.wantSaid(zap.WarnLevel, "they went on in another folder")
}

// The lost folder is taken by another daemon before anybody looks: that one has
// the old identity, and keeps it.
func TestFolderTakenByAnother(t *testing.T) {
	p, saved := usedPlace(t)
	q := place{copyDir(t, p.dir), p.live}
	s := mustOpen(t, p)
	sv := s.service("default")
	disktest.Run(t, "rm", "-rf", p.folder(t))
	twin := mustOpen(t, q)
	if got := twin.service("default").Load(); got.leases() != 0 {
		t.Errorf("the copy has %+v", got)
	}
	s.Look()
	if s.folder == twin.folder {
		t.Error("both have one identity")
	}
	sv.RaiseMark(testMark + 5)
	must.Succeed(t, s.Sync())
	s.crash()
	if got := mustOpen(t, p).service("default"); !reflect.DeepEqual(got.Load(), saved) || got.Mark() != testMark+5 {
		t.Errorf("Load gives %+v, mark %d", got.Load(), got.Mark())
	}
}

// While no live directory can be had, the log is not flooded, and nothing is
// adopted; once there is one, all is well again.
func TestLiveDirectoryThatCannotBeMade(t *testing.T) {
	p, saved := usedPlace(t)
	s := mustOpen(t, p)
	sv := s.service("default")
	must.Succeed(t, errors.Join(os.RemoveAll(p.live), os.WriteFile(p.live, nil, 0o600)))
	for i := range int64(10) {
		s.Look()
		sv.RaiseMark(testMark + i)
		if err := sv.Save(saved); err == nil {
			t.Error("saved")
		}
	}
	if s.failed != 2 { // it was lost; it cannot be written anew
		t.Errorf("%d failures were counted:\n%s", s.failed, s.said(zap.ErrorLevel))
	}
	if h := s.Health(); h.LiveErr == nil || !strings.Contains(h.LiveErr.Error(), "not a directory") {
		t.Errorf("Health: %+v", h)
	}
	must.Succeed(t, s.Sync())
	must.Succeed(t, os.Remove(p.live))
	s.Look()
	s.wantSaid(zap.InfoLevel, "the live state is up to date again")
	must.Succeed(t, s.Sync())
	s.crash()
	if got := mustOpen(t, p).service("default"); !reflect.DeepEqual(got.Load(), saved) || got.Mark() != testMark+9 {
		t.Errorf("Load gives %+v, mark %d", got.Load(), got.Mark())
	}
}

// A live directory that is lost for a while, and cannot be made anew meanwhile, costs
// nothing: the leases are adopted after a crash, also after one meanwhile.
func TestLiveDirectoryThatComesBack(t *testing.T) {
	for _, crashed := range []bool{false, true} {
		p, saved := usedPlace(t)
		s := mustOpen(t, p)
		s.service("default")
		disktest.Run(t, "mv", p.live, p.live+"x")
		must.Succeed(t, os.WriteFile(p.live, nil, 0o600))
		s.Look()
		if h := s.Health(); h.LiveErr == nil {
			t.Errorf("Health: %+v", h)
		}
		if crashed {
			s.crash()
		}
		must.Succeed(t, os.Remove(p.live))
		disktest.Run(t, "mv", p.live+"x", p.live)
		if !crashed {
			s.Look()
			if h := s.Health(); h.LiveErr != nil {
				t.Errorf("Health: %+v", h)
			}
			s.crash()
		}
		wantAdopted(t, p, saved)
	}
}

// RaiseMark goes on while Look moves the marks, again and again. Whenever it
// stops, the folder that counts has the mark.
func TestRaiseMarkWhileMarksMove(t *testing.T) {
	ring.All(t)
	p := inMemory(t)
	s := mustOpen(t, p)
	sv := s.service("default")
	mustSave(t, sv, savedWith(testLease(1, 1)))
	const moves = 300
	for range moves {
		var raiser sync.WaitGroup
		stop := make(chan struct{})
		raiser.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					sv.RaiseMark(sv.Mark() + 1)
				}
			}
		})
		must.Succeed(t, os.Remove(filepath.Join(s.Health().Live, marksName)))
		s.Look()
		close(stop)
		raiser.Wait()
		// Not even one more call of RaiseMark is needed.
		word, ok := s.marks.get("default")
		if !ok || word != sv.Mark() {
			t.Fatalf("the marks have %d, and the mark is %d", word, sv.Mark())
		}
	}
	must.Succeed(t, s.Sync())
	mark := sv.Mark()
	s.crash()
	if got := mustOpen(t, p).service("default"); got.Mark() != mark || len(got.Load().Held) != 1 {
		t.Errorf("mark %d, want %d; %+v", got.Mark(), mark, got.Load())
	}
}

// One call of RaiseMark meets one move of the mark, very often. Neither order of their
// steps loses the mark.
func TestRaiseMarkMeetsAMove(t *testing.T) {
	sv := &Service{state: &State{}, name: "default"}
	words := [2]atomic.Int64{}
	sv.word.Store(&words[0])
	var round, raised atomic.Int64
	const rounds = 300_000
	var raiser sync.WaitGroup
	raiser.Go(func() {
		for ms := int64(1); ms <= rounds; ms++ {
			for round.Load() < ms {
				runtime.Gosched()
			}
			sv.RaiseMark(ms)
			raised.Store(ms)
		}
	})
	for ms := int64(1); ms <= rounds; ms++ {
		next := &words[ms%2]
		round.Store(ms)
		for range ms % 64 { // another moment each time
			raised.Load()
		}
		if !sv.moveTo(next) {
			t.Fatal("the word cannot be written")
		}
		for raised.Load() < ms {
			runtime.Gosched()
		}
		if got, ok := decodeMark(next.Load()); !ok || got != ms {
			round.Store(rounds)
			t.Errorf("the word has the mark %d, and %d was raised", got, ms)
			break
		}
	}
	raiser.Wait()
}

// The marks are cut short and put back at random under a daemon that uses them in
// every way: an access ends in an error or in none, never in a signal.
func TestMarksCutShortAtAnyMoment(t *testing.T) {
	if ring.Race {
		t.Skip("the race detector makes each access from C code, where a cut at that moment ends the process")
	}
	p := inMemory(t)
	s := mustOpen(t, p)
	sv := s.service("default")
	ctx, cancel := context.WithCancel(t.Context())
	var background sync.WaitGroup
	background.Go(func() {
		for ctx.Err() == nil {
			path := filepath.Join(s.Health().Live, marksName)
			_ = os.Truncate(path, []int64{0, 8, 4096, 4097, 8192, marksSize}[rand.IntN(6)])
		}
	})
	background.Go(func() {
		for ctx.Err() == nil {
			if _, err := Inspect(p.dir, p.options()); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range int64(300) {
		sv.RaiseMark(sv.Mark() + 1)
		_ = sv.Save(savedWith(testLease(1, i)))
		_, _ = s.Service([]string{"a", "b", "c"}[i%3])
		s.Look()
		must.Succeed(t, s.Sync())
	}
	cancel()
	background.Wait()
	s.Look()
	must.Succeed(t, s.Sync())
	mark := sv.Mark()
	s.crash()
	for range 3 {
		s := mustOpen(t, p)
		if got := s.service("default").Mark(); got != mark {
			t.Errorf("the mark is %d, want %d", got, mark)
		}
		s.crash()
	}
}
