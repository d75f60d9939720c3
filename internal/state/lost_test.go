package state

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"go.uber.org/zap"
)

// What may happen to the live files under a running daemon. IDs go on in each case, nothing
// ends the process, and the next save says it, once. A crash then adopts nothing, but for
// leases files: the save has made a new one.
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
	byCopy := func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(path+"2", content, 0o600), os.Rename(path+"2", path))
	}
	const removed, cutShort = "was removed or replaced while this process uses it", "it was cut short while this process uses it"
	for name, c := range map[string]struct {
		lose func(*testing.T, place, string)
		says string // "": nothing is lost
	}{
		"marks removed":    {in(marksName, os.Remove), removed},
		"marks truncated":  {in(marksName, truncate(0)), cutShort},
		"marks cut":        {in(marksName, truncate(4096)), cutShort},
		"marks replaced":   {in(marksName, byCopy), removed},
		"leases removed":   {in(leasesName, os.Remove), ""},
		"leases truncated": {in(leasesName, truncate(0)), ""},
		"leases replaced":  {in(leasesName, byCopy), ""},
		"holder removed":   {in(holderName, os.Remove), ""},
		"folder removed":   {func(t *testing.T, _ place, folder string) { os.RemoveAll(folder) }, removed},
		"folder moved":     {func(t *testing.T, _ place, folder string) { disktest.Run(t, "mv", folder, folder+"x") }, removed},
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
			p, saved := usedPlace(t)
			s := mustOpen(t, p)
			sv, folder := s.service("default"), s.folder
			c.lose(t, p, p.folder(t))
			sv.RaiseMark(testMark + 1)
			for range 3 {
				if err := sv.Save(saved); (err != nil) != (c.says != "") {
					t.Errorf("Save: %v", err)
				}
				sv.RaiseMark(sv.Mark() + 1)
			}
			if c.says == "" {
				s.wantQuiet()
			} else {
				s.wantSaid(zap.ErrorLevel, c.says)
				if h := s.Health(); h.LiveErr == nil || !strings.Contains(h.LiveErr.Error(), c.says) || s.failed != 1 {
					t.Errorf("it was said %d times; Health: %+v", s.failed, h)
				}
			}
			must.Succeed(t, s.Sync())
			s.crash()
			s = mustOpen(t, p)
			sv = s.service("default")
			if got := sv.Load(); c.says != "" && got.leases() != 0 || c.says == "" && !reflect.DeepEqual(got, saved) {
				t.Errorf("Load gives %+v", got)
			}
			if sv.Mark() != testMark+4 || s.folder != folder {
				t.Errorf("the mark is %d, the identity %s, and was %s", sv.Mark(), s.folder, folder)
			}
			s.crash()
		})
	}
}

// A folder that was away for a while is as good as before: it was locked all the time.
func TestFolderThatComesBack(t *testing.T) {
	p, saved := usedPlace(t)
	q := place{copyDir(t, p.dir), p.live}
	s := mustOpen(t, p)
	sv, folder := s.service("default"), p.folder(t)
	disktest.Run(t, "mv", folder, folder+"x")
	if err := sv.Save(saved.withoutLeases()); err == nil {
		t.Error("saved")
	}
	twin := mustOpen(t, q) // takes the name
	if twin.folder != filepath.Base(folder) || twin.service("default").Load().leases() != 0 {
		t.Errorf("the copy is in %s with %+v", twin.folder, twin.service("default").Load())
	}
	twin.crash()
	disktest.Run(t, "rm", "-r", folder)
	disktest.Run(t, "mv", folder+"x", folder)
	mustOpen(t, q).wantSaid(zap.WarnLevel, "is a copy of one that a running daemon uses")
	sv.RaiseMark(testMark + 1)
	mustSave(t, sv, saved)
	s.wantSaid(zap.InfoLevel, "the live state is up to date again")
	s.crash()
	wantState(t, mustOpen(t, p).service("default"), saved, testMark+1)
}

// The folder is removed, and another daemon makes one of that name: no save goes there.
func TestFolderTakenByAnother(t *testing.T) {
	for _, lose := range []string{"rm -rf %", "mv % %x"} {
		p, saved := usedPlace(t)
		q := place{copyDir(t, p.dir), p.live}
		s := mustOpen(t, p)
		folder := p.folder(t)
		disktest.Run(t, "sh", "-c", strings.ReplaceAll(lose, "%", folder))
		twin := mustOpen(t, q)
		mustSave(t, twin.service("default"), savedWith(testLease(8, 8)))
		if twin.folder != filepath.Base(folder) {
			t.Fatalf("the copy has the folder %s: the test tests nothing", twin.folder)
		}
		before := contentsOf(t, folder)
		for _, save := range []func(Saved) error{s.service("default").Save, s.service("default").SaveAfterLoss} {
			if err := save(saved); err == nil {
				t.Errorf("%s: saved", lose)
			}
		}
		s.service("default").RaiseMark(testMark + 5)
		if after := contentsOf(t, folder); !reflect.DeepEqual(after, before) {
			t.Errorf("%s: the other daemon's files were changed", lose)
		}
		must.Succeed(t, s.Sync())
		s.crash()
		// Now it is the copy's.
		again := mustOpen(t, p)
		again.wantSaid(zap.WarnLevel, "is a copy of one that a running daemon uses")
		if got := again.service("default"); got.Load().leases() != 0 || got.Mark() != testMark+5 {
			t.Errorf("%s: Load gives %+v, mark %d", lose, got.Load(), got.Mark())
		}
	}
}

// A process whose marks were cut short says so without a save, and none of its leases is
// adopted even if somebody gives the file its size back.
func TestMarksCutShort(t *testing.T) {
	for _, saves := range []bool{false, true} {
		p, saved := usedPlace(t)
		s := mustOpen(t, p)
		sv := s.service("default")
		mend := cutMarks(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = s.Run(ctx) })
		sv.RaiseMark(testMark + 1)
		await.Eventually(t, "it is said", func() bool { return strings.Contains(s.said(zap.ErrorLevel), "it was cut short") })
		cancel()
		running.Wait()
		mend()
		if saves && sv.Save(saved) == nil {
			t.Error("saved beside marks that are lost")
		}
		if s.failed != 1 {
			t.Errorf("it was said %d times", s.failed)
		}
		wantNotAdopted(t, s, p, saved)
	}
}

// cutMarks cuts the marks of all services off. mend puts them back as they were.
func cutMarks(t *testing.T, s *testState) (mend func()) {
	t.Helper()
	path := joinPath(s.live.dir, marksName)
	intact, err := os.ReadFile(path)
	must.Succeed(t, err)
	must.Succeed(t, os.Truncate(path, marksHeader))
	return func() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must.Succeed(t, err)
		_, err = f.WriteAt(intact[marksHeader:], marksHeader)
		must.Succeed(t, errors.Join(err, f.Close()))
	}
}

// wantNotAdopted crashes a process whose marks have missed the last ID.
func wantNotAdopted(t *testing.T, s *testState, p place, saved Saved) {
	t.Helper()
	must.Succeed(t, s.Sync())
	s.crash()
	wantState(t, mustOpen(t, p).service("default"), saved.withoutLeases(), testMark+1)
}

// meanwhile is a folder in which something happens when the leases file is replaced.
type meanwhile struct {
	Dir
	happens func()
}

func (d meanwhile) Replace(name string, content []byte) error {
	if name == leasesName {
		d.happens()
	}
	return d.Dir.Replace(name, content)
}

// The marks are cut short in the middle of a save, whose end must not make the file fit again.
func TestMarksCutShortDuringASave(t *testing.T) {
	p, saved := usedPlace(t)
	s := mustOpen(t, p)
	sv := s.service("default")
	s.live.dir = meanwhile{s.live.dir, func() {
		mend := cutMarks(t, s)
		sv.RaiseMark(testMark + 1)
		mend()
	}}
	_ = sv.Save(saved)
	wantNotAdopted(t, s, p, saved)
}

// The marks are cut short and put back at random under a daemon that uses them in
// every way: an access ends in an error or in none, never in a signal.
func TestMarksCutShortAtAnyMoment(t *testing.T) {
	if ring.Race {
		t.Skip("the race detector makes each access from C code, where a cut at that moment ends the process")
	}
	for range 10 {
		p := inMemory(t)
		s := mustOpen(t, p)
		sv, path := s.service("default"), filepath.Join(s.Health().Live, marksName)
		ctx, cancel := context.WithCancel(t.Context())
		var background sync.WaitGroup
		background.Go(func() {
			for ctx.Err() == nil {
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
		for i := range int64(50) {
			sv.RaiseMark(sv.Mark() + 1)
			_ = sv.Save(savedWith(testLease(1, i)))
			_, _ = s.Service([]string{"a", "b", "c"}[i%3])
			must.Succeed(t, s.Sync())
		}
		cancel()
		background.Wait()
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
}
