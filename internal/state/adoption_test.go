package state

import (
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

// The live directory may outlast what it stands for: a container that moves, a
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
		copied   = "is a copy of the file they were saved in"
		replaced = "the marks were replaced or overwritten since"
		lost     = "the marks are missing or damaged"
		older    = "an older file was put back"
	)
	cp := func(t *testing.T, from, to string) { disktest.Run(t, "cp", from, to) } // in place where it exists
	mv := func(t *testing.T, from, to string) { disktest.Run(t, "mv", from, to) }
	type files struct{ leases, marks, oldLeases, oldMarks, oldLeasesInode string }
	for name, c := range map[string]struct {
		tamper func(*testing.T, files)
		reason string
		mark   int64
	}{
		"older leases in place":        {func(t *testing.T, f files) { cp(t, f.oldLeases, f.leases) }, copied, testMark},
		"older leases by rename":       {func(t *testing.T, f files) { mv(t, f.oldLeases, f.leases) }, copied, testMark},
		"older leases, the very inode": {func(t *testing.T, f files) { mv(t, f.oldLeasesInode, f.leases) }, older, testMark},
		"a copy of the present leases": {func(t *testing.T, f files) { cp(t, f.leases, f.leases+"2"); mv(t, f.leases+"2", f.leases) }, copied, testMark},
		"older marks in place":         {func(t *testing.T, f files) { cp(t, f.oldMarks, f.marks) }, replaced, testMark - 1},
		"older marks by rename":        {func(t *testing.T, f files) { mv(t, f.oldMarks, f.marks) }, replaced, testMark - 1},
		"marks away and back":          {func(t *testing.T, f files) { mv(t, f.marks, f.marks+"2"); mv(t, f.marks+"2", f.marks) }, replaced, testMark},
		"marks removed":                {func(t *testing.T, f files) { os.Remove(f.marks) }, lost, testMark - 1},
		"marks zeroed":                 {func(t *testing.T, f files) { change(t, f.marks, func(b []byte) []byte { return make([]byte, len(b)) }) }, lost, testMark - 1},
		"mark of 8 zero bytes":         {func(t *testing.T, f files) { change(t, f.marks, poke(marksHeader, make([]byte, 8)...)) }, lost, testMark - 1},
		"marks cut to nothing":         {func(t *testing.T, f files) { os.Truncate(f.marks, 0) }, lost, testMark - 1},
		"both older, in place":         {func(t *testing.T, f files) { cp(t, f.oldMarks, f.marks); cp(t, f.oldLeases, f.leases) }, copied, testMark - 1},
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
				filepath.Join(aside, leasesName), filepath.Join(aside, marksName), filepath.Join(aside, "inode"),
			}
			cp(t, f.leases, f.oldLeases)
			cp(t, f.marks, f.oldMarks)
			must.Succeed(t, os.Link(f.leases, f.oldLeasesInode))
			mustSave(t, sv, savedWith(testLease(2, 2))) // and lease 1 is released
			sv.RaiseMark(testMark)
			s.crash()
			c.tamper(t, f)
			wantRefused(t, p, savedWith(), c.mark, c.reason)
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
			s := mustOpen(t, p) // its sequence becomes 4 or so
			for range 3 {
				mustSave(t, s.service("default"), saved)
			}
			must.Succeed(t, os.Link(path, away))
			mustSave(t, s.service("default"), saved.withoutLeases())
			s.crash()
			must.Succeed(t, damage(path))
			mustOpen(t, p).crash()
			disktest.Run(t, "mv", away, path)
			wantRefused(t, p, saved, testMark, "an older file was put back")
		})
	}
}

func TestSwappedFolders(t *testing.T) {
	p, saved := usedPlace(t)
	q := place{filepath.Join(t.TempDir(), "state"), p.live}
	other := q.use(t, testLease(6, 600))
	a, b := p.folder(t), q.folder(t)
	disktest.Run(t, "mv", a, a+"x")
	disktest.Run(t, "mv", b, a)
	disktest.Run(t, "mv", a+"x", b)
	const reason = "the folder had another name when they were saved"
	wantRefused(t, p, saved, testMark, reason)
	wantRefused(t, q, other, testMark, reason)
}

// Marks without the slot of a service say nothing of the IDs that it made.
func TestMarksThatLackAService(t *testing.T) {
	p, saved := usedPlace(t)
	s := mustOpen(t, p)
	mustSave(t, s.service("default"), saved)
	// As if the marks had been made for others: nothing in this package does that.
	i := s.marks.names["default"]
	s.marks.slot(i, labelOffset).Store(0)
	s.marks.slot(i, 0).Store(encodeMark(0))
	s.crash()
	wantRefused(t, p, saved, testMark, `the marks do not know service "default"`)
}

// A service that the state file remembers and this boot does not use is no
// objection to the leases of the others.
func TestServiceThatIsNotConfiguredAnyMore(t *testing.T) {
	p := newPlace(t)
	s := mustOpen(t, p)
	mustSave(t, s.service("former"), savedWith(testLease(1, 1)))
	mustClose(t, s)
	must.Succeed(t, os.RemoveAll(p.live)) // the machine boots
	s = mustOpen(t, p)
	saved := savedWith(testLease(2, 2))
	mustSave(t, s.service("default"), saved)
	s.service("default").RaiseMark(testMark)
	s.crash()
	wantAdopted(t, p, saved)
}

// Leases of a service that one life does not use wait for the next one.
func TestLeasesOfAnUnusedService(t *testing.T) {
	p, saved := usedPlace(t)
	s := mustOpen(t, p)
	mustSave(t, s.service("other"), savedWith(testLease(1, 1)))
	// Also through a lost folder.
	must.Succeed(t, os.RemoveAll(p.folder(t)))
	s.Look()
	must.Succeed(t, s.Sync())
	s.crash()
	wantAdopted(t, p, saved)
}

// A state directory and a live directory belong together. One that goes back to a
// live directory of before finds leases there that nobody has kept up to date.
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
	// Under another name it is the same directory.
	link := filepath.Join(disktest.Memory(t), "link")
	must.Succeed(t, os.Symlink(p.live, link))
	wantLoads(t, mustOpen(t, place{p.dir, link}).service("default"), saved)
}

// A write that failed may have reached the file, and must not bring back, after a
// crash, a lease that the daemon gave away in the meantime. Nor may the next write
// that succeeds, be it for another service or for a new folder.
func TestFailedSaveDoesNotResurrect(t *testing.T) {
	for name, next := range map[string]func(t *testing.T, s *testState, p place){
		"crash":                 func(t *testing.T, s *testState, p place) {},
		"save of another":       func(t *testing.T, s *testState, p place) { mustSave(t, s.service("other"), savedWith(testLease(4, 4))) },
		"look":                  func(t *testing.T, s *testState, p place) { s.Look() },
		"look at a lost folder": func(t *testing.T, s *testState, p place) { os.RemoveAll(p.folder(t)); s.Look() },
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := usedPlace(t)
			s := mustOpen(t, p)
			sv := s.service("default")
			mustSave(t, sv, savedWith(testLease(1, 1), testLease(2, 2)))
			blocked := filepath.Join(p.folder(t), leasesName+newSuffix)
			must.Succeed(t, os.MkdirAll(filepath.Join(blocked, "x"), 0o700))
			err := sv.Save(savedWith(testLease(2, 2)))
			wantFileError(t, err, blocked, "left-over")
			if h := s.Health(); h.LiveErr == nil {
				t.Error("Health says nothing of it")
			}
			must.Succeed(t, os.RemoveAll(blocked))
			next(t, s, p)
			must.Succeed(t, s.Sync())
			s.crash()
			after := mustOpen(t, p)
			held := after.service("default").Load().Held
			want := savedWith(testLease(2, 2)).Held
			if name == "crash" {
				want = nil
				after.wantSaid(zap.WarnLevel, "a later change of them could not be written")
			}
			if !reflect.DeepEqual(held, want) {
				t.Errorf("held after the crash: %v, want %v", held, want)
			}
		})
	}
}

// After a crash between the write of the leases and that of their sequence the file is
// adopted, and the next life uses greater sequences than it has.
func TestCrashBeforeTheSequence(t *testing.T) {
	p, saved := usedPlace(t)
	s := mustOpen(t, p)
	mustSave(t, s.service("default"), saved)
	s.live.tell(s.marks, s.live.sequence-1)
	s.crash()
	path, away := filepath.Join(p.folder(t), leasesName), filepath.Join(disktest.Memory(t), "away")
	must.Succeed(t, os.Link(path, away))
	wantAdopted(t, p, saved)
	disktest.Run(t, "mv", away, path)
	wantRefused(t, p, saved, testMark, "an older file was put back")
}

// Copies of the state directory, by whatever means they came to be.
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
		if report.Holder != nil || !strings.Contains(report.Refusal, "is a copy of its own") {
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
		s.service("default").RaiseMark(testMark + 1)
		must.Succeed(t, s.Sync())
		for _, how := range []string{"cp", "mv"} {
			disktest.Run(t, how, filepath.Join(backup, stateName), p.disk(stateName))
			must.Succeed(t, s.Sync())
			if floor := p.inspect(t).Services[0].Floor; floor != testMark+1 {
				t.Errorf("%s: the floor is %d", how, floor)
			}
		}
	})
}

// Only the marks have what was done since the state directory was synced last.
func TestFloorIsTheGreaterOne(t *testing.T) {
	p, saved := usedPlace(t)
	s := mustOpen(t, p)
	s.service("default").RaiseMark(testMark + 7)
	s.crash()
	s = mustOpen(t, p)
	if mark := s.service("default").Mark(); mark != testMark+7 {
		t.Errorf("the mark is %d", mark)
	}
	mustClose(t, s)
	must.Succeed(t, os.RemoveAll(p.live)) // the machine boots
	s = mustOpen(t, p)
	sv := s.service("default")
	wantState(t, sv, saved.withoutLeases(), testMark+7)
	s.wantQuiet()
}
