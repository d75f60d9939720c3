package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"go.uber.org/zap"
)

// resealed is a sealed file with a changed document and the right checksum.
func resealed(t *testing.T, k kind, edit func(text string) string) func([]byte) []byte {
	return func(content []byte) []byte {
		_, text, _ := strings.Cut(string(content), "\n")
		edited := edit(text)
		if edited == text {
			t.Fatalf("nothing was changed in %s", text)
		}
		return sealText(k, []byte(edited))
	}
}

func replace(old, with string) func(string) string {
	return func(text string) string { return strings.Replace(text, old, with, 1) }
}

// Each of these stops the start with an error that names the file, and leaves
// every file as it is.
func TestDamagedStateFile(t *testing.T) {
	ring.All(t)
	for name, c := range map[string]struct {
		damage func(t *testing.T, p place)
		text   string
	}{
		"empty":            {edit(cut(0)), "is damaged: it is empty"},
		"zeroed":           {edit(func(b []byte) []byte { return make([]byte, len(b)) }), "it is empty"},
		"cut in the line":  {edit(cut(20)), "its first line is incomplete"},
		"cut in the text":  {edit(cut(100)), "bytes after the first line instead of"},
		"longer":           {edit(func(b []byte) []byte { return append(b, 'x') }), "bytes after the first line instead of"},
		"a bit flipped":    {edit(func(b []byte) []byte { b[len(b)-9] ^= 1; return b }), "does not match its checksum"},
		"text":             {edit(func([]byte) []byte { return []byte(strings.Repeat("hello\n", 1000)) }), "is not a kazahana-state file"},
		"a leases file":    {edit(func(b []byte) []byte { return []byte(strings.Replace(string(b), stateKind.name, leasesKind.name, 1)) }), "is not a kazahana-state file"},
		"newer":            {edit(func(b []byte) []byte { return []byte(strings.Replace(string(b), " 1 ", " 2 ", 1)) }), "has version 2, and this kazahanad knows version 1 only"},
		"unknown field":    {reseal(replace(`"identity"`, `"x":1,"identity"`)), "unknown field"},
		"no identity":      {reseal(replace(`"identity":"`, `"identity":"x`)), "is not 32 hex digits"},
		"negative floor":   {reseal(replace(`"floorMs":`, `"floorMs":-`)), "is not a valid time"},
		"no floor at all":  {reseal(replace(`"floorMs":1`, `"floorMs":9999`)), "is not a valid time"},
		"evil identity":    {reseal(replace(`"identity":"`, `"identity":"../`)), "is not 32 hex digits"},
		"strange timeline": {reseal(replace(`"bitTs":41`, `"bitTs":99`)), `service "default"`},
		"a lease":          {reseal(replace(`{"default":{`, `{"default":{"held":[`+leaseJSON+`],`)), "belongs in the live directory"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := usedPlace(t)
			live := p.folder(t)
			c.damage(t, p)
			path := p.disk(stateName)
			before, liveBefore := contentsOf(t, p.dir), contentsOf(t, live)
			for range 2 { // the second start has no better luck
				_, err := tryOpen(t, p)
				wantFileError(t, err, path, c.text)
			}
			_, err := Inspect(p.dir, p.options())
			wantFileError(t, err, path, c.text)
			_, err = ResetFloor(p.dir, "", resetTo, p.options())
			wantFileError(t, err, path, c.text)
			_, err = Check(p.dir, "", os.Geteuid())
			wantFileError(t, err, path, c.text)
			after := contentsOf(t, p.dir)
			delete(before, lockName) // names the last holder
			delete(after, lockName)
			if !maps.Equal(after, before) || !maps.Equal(contentsOf(t, live), liveBefore) {
				t.Error("a file was changed")
			}
			// What the error says helps.
			must.Succeed(t, os.Rename(path, path+".away"))
			wantLoads(t, mustOpen(t, p).service("default"), Saved{})
		})
	}
}

const leaseJSON = `{"id":3,"created":1000,"expired":2000,"reservedUntil":2000,"secret":"s","customEpoch":1767225600000,"bitReserve":1,"bitTs":41,"bitId":14,"bitSeq":8}`

func edit(edit func([]byte) []byte) func(*testing.T, place) {
	return func(t *testing.T, p place) { change(t, p.disk(stateName), edit) }
}

func reseal(edit func(string) string) func(*testing.T, place) {
	return func(t *testing.T, p place) { change(t, p.disk(stateName), resealed(t, stateKind, edit)) }
}

// Each of these costs the leases, is said as an error, and is made good.
func TestDamagedLiveFiles(t *testing.T) {
	ring.All(t)
	slot := func(i int) int { return marksHeader + i*slotSize }
	word := func(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
	for name, c := range map[string]struct {
		file   string
		damage func([]byte) []byte
		text   string
	}{
		"marks empty":          {marksName, cut(0), "it has 0 bytes"},
		"marks cut in a word":  {marksName, cut(1001), "it has 1001 bytes"},
		"marks cut in header":  {marksName, cut(96), "it has 96 bytes instead of 69632"},
		"marks cut in slots":   {marksName, cut(5000), "it has 5000 bytes instead of"},
		"marks too long":       {marksName, func(b []byte) []byte { return append(b, make([]byte, 8)...) }, "it has 69640 bytes instead of"},
		"marks zeroed":         {marksName, func(b []byte) []byte { return make([]byte, len(b)) }, "its beginning is not that of a marks file"},
		"marks foreign":        {marksName, poke(0, []byte("something")...), "its beginning is not"},
		"marks of before":      {marksName, poke(8, 1), "it is of another version or another machine"},
		"marks swapped":        {marksName, poke(8, 0, 0, 0, 2), "it is of another version or another machine"},
		"marks of before 1970": {marksName, poke(slot(0), word(1<<63)...), "the mark in slot 0 is not a valid time"},
		"marks far ahead":      {marksName, poke(slot(255), word(maxMark+1)...), "the mark in slot 255 is not a valid time"},
		"marks name too long":  {marksName, poke(slot(0)+lengthOffset, word(255)...), "has a name of 255 bytes"},
		"marks name negative":  {marksName, poke(slot(0)+lengthOffset, word(1<<63)...), "has a name of -9223372036854775808 bytes"},
		"marks without name":   {marksName, poke(slot(0)+lengthOffset, word(0)...), "slot 0 has a mark and no name"},

		"leases empty":          {leasesName, cut(0), "it is empty"},
		"leases cut":            {leasesName, cut(200), "instead of"},
		"leases flipped":        {leasesName, func(b []byte) []byte { b[len(b)-9] ^= 1; return b }, "does not match its checksum"},
		"leases of before":      {leasesName, func(b []byte) []byte { return []byte(strings.Replace(string(b), " 2 ", " 1 ", 1)) }, "has version 1, and this kazahanad knows version 2 only"},
		"leases foreign":        {leasesName, func([]byte) []byte { return []byte("hello") }, "is not a kazahana-leases file"},
		"leases of no timeline": {leasesName, resealed(t, leasesKind, replace(`"timeline":{"epochMs":`, `"timeline":{"epochMs":1`)), "is on timeline"},
	} {
		t.Run(name, func(t *testing.T) {
			p, saved := usedPlace(t)
			path := filepath.Join(p.folder(t), c.file)
			change(t, path, c.damage)
			report := p.inspect(t)
			if report.Damage == nil || !strings.Contains(report.Damage.Error(), c.text) || !strings.Contains(report.Damage.Error(), path) {
				t.Errorf("Inspect says %v", report.Damage)
			}
			s := mustOpen(t, p)
			s.wantSaid(zap.ErrorLevel, "the live state is damaged")
			s.wantSaid(zap.ErrorLevel, c.text)
			if s.failed != 1 {
				t.Errorf("%d failures were counted", s.failed)
			}
			sv := s.service("default")
			wantState(t, sv, saved.withoutLeases(), testMark)
			mustSave(t, sv, saved)
			s.crash()
			wantAdopted(t, p, saved)
		})
	}
}

// What a crash left half written is removed by the next write.
func TestLeftOversAreReplaced(t *testing.T) {
	p, saved := usedPlace(t)
	paths := []string{p.disk(stateName + newSuffix)}
	for _, name := range []string{leasesName, marksName} {
		paths = append(paths, filepath.Join(p.folder(t), name+newSuffix))
	}
	for _, path := range paths {
		must.Succeed(t, os.WriteFile(path, []byte("half"), 0o600))
	}
	wantAdopted(t, p, saved)
	s := mustOpen(t, p)
	s.service("default").RaiseMark(testMark + 1)
	must.Succeed(t, errors.Join(s.Sync(), s.service("default").Save(saved)))
	for _, path := range paths[:2] {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}

// A directory, a link, a pipe or a device where a file belongs.
func TestWrongKindOfFile(t *testing.T) {
	kinds := map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"dead link": func(path string) error { return os.Symlink("nowhere", path) },
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
	}
	for kind, put := range kinds {
		for _, file := range []string{lockName, stateName} {
			t.Run(file+" "+kind, func(t *testing.T) {
				p, _ := usedPlace(t)
				must.Succeed(t, errors.Join(os.Remove(p.disk(file)), put(p.disk(file))))
				_, err := tryOpen(t, p)
				wantFileError(t, err, p.disk(file), "is not a regular file")
			})
		}
		for _, file := range []string{leasesName, marksName} {
			t.Run(file+" "+kind, func(t *testing.T) {
				p, _ := usedPlace(t)
				path := filepath.Join(p.folder(t), file)
				must.Succeed(t, errors.Join(os.Remove(path), put(path)))
				s, err := tryOpen(t, p)
				switch {
				case kind != "directory":
					must.Succeed(t, err)
					s.wantSaid(zap.ErrorLevel, "is not a regular file")
					mustClose(t, s)
				case file == leasesName: // nothing can take its place
					must.Succeed(t, err)
					s.wantSaid(zap.ErrorLevel, "the live state cannot be written")
					mustClose(t, s)
				default:
					wantFileError(t, err, path, "cannot put the new file in its place")
				}
			})
		}
	}
}

// The live directory fills up: IDs go on, a crash brings the last save, and once there is space
// again, the next save succeeds.
func TestFullLiveDirectoryWhileRunning(t *testing.T) {
	root := disktest.Small(t, "1m")
	p := place{filepath.Join(t.TempDir(), "state"), filepath.Join(root, "live")}
	s := mustOpen(t, p)
	sv := s.service("default")
	mustSave(t, sv, savedWith(testLease(1, 1)))
	free := disktest.Fill(t, filepath.Join(root, "filler"))
	want := savedWith(testLease(2, 2))
	wantFileError(t, sv.Save(want), filepath.Join(p.folder(t), leasesName), "no space left")
	for v := range int64(10_000) { // the marks have their space
		sv.RaiseMark(testMark + v)
	}
	for range 3 {
		if err := sv.Save(want); err == nil {
			t.Error("saved on a full file system")
		}
	}
	if s.failed != 1 {
		t.Errorf("%d failures were counted", s.failed)
	}
	if h := s.Health(); h.LiveErr == nil {
		t.Error("Health says nothing of it")
	}
	must.Succeed(t, s.Sync())

	// A crash now, and a start on the full file system.
	s.crash()
	s = mustOpen(t, p)
	s.wantSaid(zap.ErrorLevel, "the live state cannot be written")
	sv = s.service("default")
	wantState(t, sv, savedWith(testLease(1, 1)), testMark+9_999)
	if err := sv.Save(want); err == nil {
		t.Error("saved on a full file system")
	}
	free()
	mustSave(t, sv, want)
	s.wantSaid(zap.InfoLevel, "the live state is up to date again")
	if h := s.Health(); h.LiveErr != nil {
		t.Errorf("Health: %+v", h)
	}
	sv.RaiseMark(testMark + 20_000)
	s.crash()
	s = mustOpen(t, p)
	s.wantQuiet()
	sv = s.service("default")
	wantState(t, sv, want, testMark+20_000)
}

// The disk fills up under a daemon, which is killed and started again: nothing of
// it needs the disk.
func TestFullDiskWhileRunning(t *testing.T) {
	root := disktest.Small(t, "64k")
	p := place{filepath.Join(root, "state"), filepath.Join(disktest.Memory(t), "live")}
	s := mustOpen(t, p)
	disktest.Fill(t, filepath.Join(root, "filler"))
	for life := range int64(3) {
		sv := s.service("default")
		want := savedWith(testLease(1, life+1))
		mustSave(t, sv, want)
		sv.RaiseMark(testMark + life)
		if err := s.Sync(); err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("Sync: %v", err)
		}
		if h := s.Health(); h.Err == nil || h.LiveErr != nil {
			t.Errorf("Health: %+v", h)
		}
		if life == 1 { // a stop is no worse
			if err := s.Close(); err == nil || !strings.Contains(err.Error(), "no space left") {
				t.Errorf("Close: %v", err)
			}
		} else {
			s.crash()
		}
		s = mustOpenFull(t, p)
		s.wantSaid(zap.ErrorLevel, "the state directory cannot be written")
		sv = s.service("default")
		wantState(t, sv, want, testMark+life)
	}
	s.crash()
}

// mustOpenFull opens a place that cannot be closed without an error.
func mustOpenFull(t *testing.T, p place) *testState {
	t.Helper()
	s, err := tryOpen(t, p)
	must.Succeed(t, err)
	return s
}

// fmt would show a Lease's secret through reflection, an error must not.
func TestErrorsShowNoSecret(t *testing.T) {
	p, saved := usedPlace(t)
	path := filepath.Join(p.folder(t), leasesName)
	change(t, path, resealed(t, leasesKind, replace(`"bitTs":41`, `"bitTs":42`)))
	s := mustOpen(t, p)
	for _, l := range saved.Held {
		if said := s.said(zap.InfoLevel) + fmt.Sprint(p.inspect(t)); strings.Contains(said, l.Secret) {
			t.Errorf("a secret is shown: %s", said)
		}
	}
}
