package state

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

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
	empty := func(path string) error { return os.Truncate(path, 0) }
	byCopy := func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(path+"2", content, 0o600), os.Rename(path+"2", path))
	}
	const removed = "was removed or replaced while this process uses it"
	for name, c := range map[string]struct {
		lose func(*testing.T, place, string)
		says string // "": nothing is lost
	}{
		"marks removed":    {in(marksName, os.Remove), removed},
		"marks replaced":   {in(marksName, byCopy), removed},
		"leases removed":   {in(leasesName, os.Remove), ""},
		"leases truncated": {in(leasesName, empty), ""},
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
