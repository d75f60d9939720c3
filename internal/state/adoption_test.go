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

// wantRefused opens the place and checks that leases are gone, timeline, offer and
// mark are not, and the reason is said; and that they stay gone even where the next
// start has no objection.
func wantRefused(t *testing.T, p place, was Saved, mark int64, reason string, changes ...func(*Options)) {
	t.Helper()
	for i, changes := range [][]func(*Options){changes, changes, nil} {
		s := mustOpen(t, p, changes...)
		if i == 0 {
			s.wantSaid(zap.WarnLevel, "leases of an earlier run are not adopted")
			s.wantSaid(zap.WarnLevel, reason)
		}
		sv := s.service("default")
		wantLoads(t, sv, was.withoutLeases())
		if sv.Mark() != mark {
			t.Errorf("start %d: Mark is %d, want %d", i, sv.Mark(), mark)
		}
		s.crash()
	}
}

func wantAdopted(t *testing.T, p place, want Saved) {
	t.Helper()
	s := mustOpen(t, p)
	sv := s.service("default")
	wantState(t, sv, want, testMark)
	s.wantQuiet()
	s.crash()
}

func identity(i Identity) func(*Options) {
	return func(o *Options) { o.Identity = func() Identity { return i } }
}

// The live directory may outlast its machine or container: a container that moves, a
// machine that is cloned while it runs. Where the boot ID cannot be read, nothing
// tells this host from another. Containers often have no machine ID; the boot ID says
// enough.
func TestForeignLeasesAreNotAdopted(t *testing.T) {
	const machine, boot, unread = "they were saved on another machine", "they were saved before the last boot", "this host's boot ID cannot be read"
	for name, c := range map[string]struct {
		then, now Identity
		reason    string // "": adopted
	}{
		"the same":                {Identity{"machine a", "boot a"}, Identity{"machine a", "boot a"}, ""},
		"other machine":           {Identity{"machine a", "boot a"}, Identity{"machine b", "boot a"}, machine},
		"other boot":              {Identity{"machine a", "boot a"}, Identity{"machine a", "boot b"}, boot},
		"machine ID unreadable":   {Identity{"machine a", "boot a"}, Identity{"", "boot a"}, machine},
		"boot ID unreadable":      {Identity{"machine a", "boot a"}, Identity{"machine a", ""}, unread},
		"neither can be read now": {Identity{"machine a", "boot a"}, Identity{"", ""}, unread},
		"neither can ever be":     {Identity{"", ""}, Identity{"", ""}, unread},
		"a boot ID alone":         {Identity{"", "boot a"}, Identity{"", "boot a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			s := mustOpen(t, p, identity(c.then))
			saved := savedWith(testLease(1, 1))
			mustSave(t, s.service("default"), saved)
			s.service("default").RaiseMark(testMark)
			must.Succeed(t, s.Sync())
			s.crash()
			opts := p.options()
			identity(c.now)(&opts)
			if report, err := Inspect(p.dir, opts); err != nil || report.Refusal != c.reason {
				t.Errorf("Inspect: %q, %v", report.Refusal, err)
			}
			if c.reason != "" {
				wantRefused(t, p, saved, testMark, c.reason, identity(c.now))
			} else if got := mustOpen(t, p, identity(c.now)).service("default").Load(); !reflect.DeepEqual(got, saved) {
				t.Errorf("Load gives %+v", got)
			}
		})
	}
}

// What an operator may do to the files in the live folder, while no daemon runs.
func TestLiveFilesThatAreNotTheLast(t *testing.T) {
	ring.All(t)
	const (
		replaced = "the marks were replaced since"
		lost     = "the marks are missing or damaged"
		older    = "an older file was put back"
	)
	cp := func(t *testing.T, from, to string) { disktest.Run(t, "cp", from, to) } // in place where it exists
	mv := func(t *testing.T, from, to string) { disktest.Run(t, "mv", from, to) }
	type files struct{ leases, marks, oldLeases, oldMarks string }
	for name, c := range map[string]struct {
		tamper func(*testing.T, files)
		reason string
		mark   int64
	}{
		"older leases in place":        {func(t *testing.T, f files) { cp(t, f.oldLeases, f.leases) }, older, testMark},
		"older leases by rename":       {func(t *testing.T, f files) { mv(t, f.oldLeases, f.leases) }, older, testMark},
		"a copy of the present leases": {func(t *testing.T, f files) { cp(t, f.leases, f.leases+"2"); mv(t, f.leases+"2", f.leases) }, "", testMark},
		"older marks by rename":        {func(t *testing.T, f files) { mv(t, f.oldMarks, f.marks) }, replaced, testMark - 1},
		"present marks by rename":      {func(t *testing.T, f files) { cp(t, f.marks, f.marks+"2"); mv(t, f.marks+"2", f.marks) }, replaced, testMark},
		"marks away and back":          {func(t *testing.T, f files) { mv(t, f.marks, f.marks+"2"); mv(t, f.marks+"2", f.marks) }, "", testMark},
		"marks removed":                {func(t *testing.T, f files) { os.Remove(f.marks) }, lost, testMark - 1},
		"marks zeroed":                 {func(t *testing.T, f files) { change(t, f.marks, func(b []byte) []byte { return make([]byte, len(b)) }) }, lost, testMark - 1},
		"marks cut to nothing":         {func(t *testing.T, f files) { os.Truncate(f.marks, 0) }, lost, testMark - 1},
		"both older, by rename":        {func(t *testing.T, f files) { mv(t, f.oldMarks, f.marks); mv(t, f.oldLeases, f.leases) }, replaced, testMark - 1},
		"the folder is a copy": {func(t *testing.T, f files) {
			folder := filepath.Dir(f.marks)
			disktest.Run(t, "cp", "-a", folder, folder+"2")
			disktest.Run(t, "rm", "-r", folder)
			mv(t, folder+"2", folder)
		}, "they were saved in another folder", testMark},
		"the files in a new folder": {func(t *testing.T, f files) {
			folder := filepath.Dir(f.marks)
			mv(t, folder, folder+"2")
			must.Succeed(t, os.Mkdir(folder, 0o700))
			disktest.Run(t, "mv", filepath.Join(folder+"2", leasesName), filepath.Join(folder+"2", marksName), folder)
		}, "they were saved in another folder", testMark},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			s := mustOpen(t, p)
			sv := s.service("default")
			mustSave(t, sv, savedWith(testLease(1, 1), testLease(2, 2)))
			sv.RaiseMark(testMark - 1)
			must.Succeed(t, s.Sync()) // the floor, which then falls behind
			folder, aside := p.folder(t), disktest.Memory(t)
			f := files{
				filepath.Join(folder, leasesName), filepath.Join(folder, marksName),
				filepath.Join(aside, leasesName), filepath.Join(aside, marksName),
			}
			cp(t, f.leases, f.oldLeases)
			cp(t, f.marks, f.oldMarks)
			mustSave(t, sv, savedWith(testLease(2, 2))) // and lease 1 is released
			sv.RaiseMark(testMark)
			s.crash()
			c.tamper(t, f)
			if c.reason == "" {
				wantAdopted(t, p, savedWith(testLease(2, 2)))
			} else {
				wantRefused(t, p, savedWith(), c.mark, c.reason)
			}
		})
	}
}

// A leases file that was away during a life does not come back after it, although
// that life knew nothing of it.
func TestLeasesFileThatWasAway(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"missing": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("?"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			p, saved := usedPlace(t)
			path := filepath.Join(p.folder(t), leasesName)
			away := filepath.Join(disktest.Memory(t), "away")
			s := mustOpen(t, p)
			must.Succeed(t, os.Link(path, away))
			mustSave(t, s.service("default"), saved.withoutLeases())
			s.crash()
			must.Succeed(t, damage(path))
			mustOpen(t, p).crash()
			disktest.Run(t, "mv", away, path)
			wantRefused(t, p, saved, testMark, "the marks were replaced since")
		})
	}
}

// Marks without the slot of a service say nothing of the IDs that it made.
func TestMarksThatLackAService(t *testing.T) {
	p, saved := usedPlace(t)
	s := mustOpen(t, p)
	mustSave(t, s.service("default"), saved)
	// As if the marks had been made for others: nothing in this package does that.
	i := s.marks.names["default"]
	s.marks.slot(i, lengthOffset).Store(0)
	s.marks.slot(i, 0).Store(0)
	s.crash()
	wantRefused(t, p, saved, testMark, `the marks do not know service "default"`)
}

// A state directory and a live directory belong together. A state directory that goes back to a
// live directory of before finds leases there that no process has kept up to date.
func TestLiveDirectoryThatChanges(t *testing.T) {
	p, saved := usedPlace(t)
	there := place{p.dir, filepath.Join(disktest.Memory(t), "there")}
	none := place{p.dir, ""}
	s := mustOpen(t, p)
	s.service("default").RaiseMark(testMark + 1)
	s.crash() // the floor on the disk is behind
	mark := testMark + 1
	for i, next := range []place{there, none, there, p, none, p} {
		s := mustOpen(t, next)
		sv := s.service("default")
		wantLoads(t, sv, saved.withoutLeases())
		if sv.Mark() != mark {
			t.Errorf("move %d: the mark is %d, want %d", i, sv.Mark(), mark)
		}
		mark++
		mustSave(t, sv, saved)
		sv.RaiseMark(mark)
		s.crash()
	}
}

// A write that failed leaves the leases of before, none of which was released. After a loss
// it leaves none: the lost one must not come back. The next write that succeeds makes up for
// it, be it for another service.
func TestFailedSave(t *testing.T) {
	before := savedWith(testLease(1, 1), testLease(2, 2))
	after := savedWith(testLease(2, 2))
	for _, loss := range []bool{false, true} {
		for _, again := range []bool{false, true} {
			p, _ := usedPlace(t)
			s := mustOpen(t, p)
			sv := s.service("default")
			mustSave(t, sv, before)
			save, want := sv.Save, before.Held
			if loss {
				save, want = sv.SaveAfterLoss, nil
			}
			blocked := filepath.Join(p.folder(t), leasesName+newSuffix)
			must.Succeed(t, os.MkdirAll(filepath.Join(blocked, "x"), 0o700))
			for range 3 {
				wantFileError(t, save(after), blocked, "left-over")
			}
			if s.failed != 1 || s.Health().LiveErr == nil {
				t.Errorf("it was said %d times; Health: %+v", s.failed, s.Health())
			}
			must.Succeed(t, os.RemoveAll(blocked))
			if again {
				mustSave(t, s.service("other"), savedWith(testLease(4, 4)))
				s.wantSaid(zap.InfoLevel, "the live state is up to date again")
				want = after.Held
			}
			s.crash()
			if held := mustOpen(t, p).service("default").Load().Held; !reflect.DeepEqual(held, want) {
				t.Errorf("after a loss: %v, saved again: %v: held after the crash: %v, want %v", loss, again, held, want)
			}
		}
	}
}

// A start that adopts no lease makes a new marks file. Where it is killed right after that, and
// the disk is full besides, the marks of before are there still.
func TestCrashAfterNewMarks(t *testing.T) {
	p, _ := usedPlace(t)
	s := mustOpen(t, p)
	s.service("default").RaiseMark(testMark + 1)
	s.crash() // the floor on the disk is behind
	must.Succeed(t, os.Remove(filepath.Join(p.folder(t), leasesName)))
	full := filepath.Join(p.dir, stateName+newSuffix)
	must.Succeed(t, os.MkdirAll(filepath.Join(full, "x"), 0o700))
	mustOpen(t, p).crash()
	must.Succeed(t, os.RemoveAll(full))
	if mark := mustOpen(t, p).service("default").Mark(); mark != testMark+1 {
		t.Errorf("the mark is %d, want %d", mark, testMark+1)
	}
}

// crashDir is the live directory of a process that ends at a step of a save: before or after
// the new file has its name.
type crashDir struct {
	Dir
	at *string
}

var errCrash = errors.New("the process has ended")

func (d crashDir) Replace(name string, content []byte) error {
	if name == leasesName && *d.at == "before" {
		return errCrash
	}
	if err := d.Dir.Replace(name, content); err != nil || name != leasesName || *d.at == "" {
		return err
	}
	return errCrash
}

// A crash in the middle of a save brings the old leases or the new ones, and after a loss the
// new ones or none. Earlier leases come back at no step.
func TestCrashDuringASave(t *testing.T) {
	oldest, old, next := savedWith(testLease(1, 1)), savedWith(testLease(2, 2)), savedWith(testLease(3, 3))
	for _, loss := range []bool{false, true} {
		for _, at := range []string{"before", "after"} {
			for _, putBack := range []bool{false, true} {
				p := newPlace(t)
				s, step := mustOpen(t, p), ""
				s.live.dir = crashDir{s.live.dir, &step}
				sv := s.service("default")
				mustSave(t, sv, oldest)
				path, away := filepath.Join(p.folder(t), leasesName), filepath.Join(disktest.Memory(t), "away")
				must.Succeed(t, os.Link(path, away))
				mustSave(t, sv, old)
				save, want := sv.Save, old.Held
				if loss {
					save, want = sv.SaveAfterLoss, nil
				}
				if at == "after" {
					want = next.Held
				}
				step = at
				if err := save(next); !errors.Is(err, errCrash) {
					t.Fatal(err)
				}
				s.crash()
				if putBack {
					disktest.Run(t, "mv", away, path)
					want = nil
				}
				if held := mustOpen(t, p).service("default").Load().Held; !reflect.DeepEqual(held, want) {
					t.Errorf("%s the rename, after a loss: %v, an older file put back: %v: held %v, want %v", at, loss, putBack, held, want)
				}
			}
		}
	}
}

// Marks that come from another folder may be in use there, so nothing goes on in them.
func TestMarksOfAnotherFolder(t *testing.T) {
	p, _ := usedPlace(t)
	owner := mustOpen(t, p)
	sv := owner.service("default")
	q := place{filepath.Join(t.TempDir(), "state"), p.live}
	mustOpen(t, q).crash()
	disktest.Run(t, "mv", filepath.Join(p.folder(t), leasesName), filepath.Join(p.folder(t), marksName), q.folder(t))
	thief := mustOpen(t, q)
	other := thief.service("default")
	if got := other.Load(); got.leases() != 0 || other.Mark() != testMark {
		t.Errorf("the other daemon has %+v and the mark %d", got, other.Mark())
	}
	mustSave(t, other, savedWith(testLease(8, 8)))
	other.RaiseMark(testMark + 100)
	sv.RaiseMark(testMark + 1) // into marks that no daemon goes on from
	if err := sv.Save(savedWith(testLease(3, 1000))); err == nil {
		t.Error("saved beside marks that are gone")
	}
	thief.crash()
	again := mustOpen(t, q).service("default")
	wantState(t, again, savedWith(testLease(8, 8)), testMark+100)
}

// Copies of the state directory, made by any means.
func TestCopies(t *testing.T) {
	ring.All(t)
	t.Run("beside a running daemon", func(t *testing.T) {
		p, saved := usedPlace(t)
		s := mustOpen(t, p)
		mustSave(t, s.service("default"), saved)
		q := place{copyDir(t, p.dir), p.live}
		twin := mustOpen(t, q)
		twin.wantSaid(zap.WarnLevel, "is a copy of one that a running daemon uses")
		wantLoads(t, twin.service("default"), saved.withoutLeases())
		mustSave(t, twin.service("default"), savedWith(testLease(8, 8)))
		if twin.folder == s.folder {
			t.Error("both have one identity")
		}
		// From now on they are two.
		s.crash()
		twin.crash()
		if held := mustOpen(t, q).service("default").Load().Held; len(held) != 1 || held[0].ID != 8 {
			t.Errorf("the copy holds %v", held)
		}
		wantAdopted(t, p, saved)
	})
	t.Run("put back under a running daemon", func(t *testing.T) {
		p, saved := usedPlace(t)
		backup := copyDir(t, p.dir)
		s := mustOpen(t, p)
		disktest.Run(t, "rm", "-rf", p.dir)
		disktest.Run(t, "cp", "-a", backup, p.dir)
		report := p.inspect(t)
		if report.Holder != nil || !strings.Contains(report.Refusal, "the daemon of "+p.dir+" uses them: this state directory is a copy") {
			t.Errorf("report: %+v", report)
		}
		twin := mustOpen(t, p)
		if got := twin.service("default").Load(); got.leases() != 0 {
			t.Errorf("the second daemon has %+v", got)
		}
		wantLoads(t, s.service("default"), saved)
		if err := s.Sync(); err == nil || s.Health().Err == nil {
			t.Errorf("nothing is said of the lost directory: %v", err)
		}
		s.crash()
	})
	t.Run("state file replaced under a running daemon", func(t *testing.T) {
		p, _ := usedPlace(t)
		backup := copyDir(t, p.dir)
		s := mustOpen(t, p)
		sv := s.service("default")
		for _, how := range []string{"cp", "mv"} {
			sv.RaiseMark(sv.Mark() + 1)
			must.Succeed(t, s.Sync())
			disktest.Run(t, how, filepath.Join(backup, stateName), p.disk(stateName))
			sv.RaiseMark(sv.Mark() + 1) // the file is not looked at before there is something to write
			must.Succeed(t, s.Sync())
			if floor := p.inspect(t).Services[0].Floor; floor != sv.Mark() {
				t.Errorf("%s: the floor is %d", how, floor)
			}
		}
	})
}
