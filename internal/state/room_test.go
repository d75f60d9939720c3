package state

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
)

// noRoom is a live directory in which no leases file can be written while *full.
type noRoom struct {
	Dir
	full *bool
}

func (d noRoom) Sub(name string, create bool) (Dir, error) {
	sub, err := d.Dir.Sub(name, create)
	if err != nil {
		return nil, err
	}
	return noRoom{sub, d.full}, nil
}

func (d noRoom) Replace(name string, content func(FileID) []byte) error {
	if *d.full && name == leasesName {
		return errors.New("no space left on device")
	}
	return d.Dir.Replace(name, content)
}

// openIn opens a state over two real directories; none need be in memory.
func openIn(t *testing.T, path string, full *bool) (*State, *Service) {
	t.Helper()
	disk, err := openDir(filepath.Join(path, "state"), true, "")
	if err != nil {
		t.Fatal(err)
	}
	base, err := openDir(filepath.Join(path, "live"), true, "")
	if err != nil {
		t.Fatal(err)
	}
	identity := func() Identity { return Identity{BootID: "this boot"} }
	s, err := OpenOn(context.Background(), disk, noRoom{base, full}, Options{Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	sv, err := s.Service("default")
	if err != nil {
		t.Fatal(err)
	}
	return s, sv
}

// killed ends a process without Close: the kernel drops its locks.
func killed(t *testing.T, s *State) {
	t.Helper()
	if err := errors.Join(s.closeLive(), s.disk.Close()); err != nil {
		t.Fatal(err)
	}
}

func savedUntil(end int64) Saved {
	l := lease.Lease{ID: 3, Created: 1000, Expired: end, ReservedUntil: end, Secret: "x", BitReserve: 1, BitTS: 41, BitID: 14, BitSeq: 8}
	return Saved{Held: []lease.Lease{l}, Timeline: l.Timeline(), Source: SourceLease}
}

// TestMarksStayWithTheLeases: where the leases file is lost and there is no room
// for a new folder, the old one goes on. The next Save makes its leases adoptable
// again; the mark that is beside them must be the present one.
func TestMarksStayWithTheLeases(t *testing.T) {
	dir, full := t.TempDir(), false
	s, sv := openIn(t, dir, &full)
	if err := sv.Save(savedUntil(9000)); err != nil {
		t.Fatal(err)
	}
	sv.RaiseMark(2000)
	if err := s.live.dir.(noRoom).Dir.(*osDir).root.Remove(leasesName); err != nil {
		t.Fatal(err)
	}
	full = true
	s.Look()
	full = false
	sv.RaiseMark(3000)
	if err := sv.Save(savedUntil(9000)); err != nil {
		t.Fatal(err)
	}
	sv.RaiseMark(4000)
	killed(t, s)

	s, sv = openIn(t, dir, &full)
	if mark, leases := sv.Mark(), len(sv.Load().Held); mark != 4000 || leases != 1 {
		t.Errorf("after a kill -9: mark %d and %d leases, want 4000 and 1", mark, leases)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFolderWithYoungIDsIsKept: a daemon in a long outage makes fallback IDs long
// after its last lease has ended. While it restarts, its marks stay.
func TestFolderWithYoungIDsIsKept(t *testing.T) {
	dir, full := t.TempDir(), false
	s, sv := openIn(t, dir, &full)
	if err := sv.Save(savedUntil(2000)); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(3 * abandonedAfter).UnixMilli()
	sv.RaiseMark(now)
	folder := s.folder
	killed(t, s)
	base, err := openDir(filepath.Join(dir, "live"), false, "")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	for _, c := range []struct {
		nowMS int64
		want  bool
	}{{now, false}, {now + abandonedAfter.Milliseconds() + 1, true}} {
		if removed, err := removeIfAbandoned(base, folder, c.nowMS); err != nil || removed != c.want {
			t.Errorf("%d ms after the last ID: removed %v, %v", c.nowMS-now, removed, err)
		}
	}
	if _, err := base.Sub(folder, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
}
