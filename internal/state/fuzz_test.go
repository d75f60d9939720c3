package state

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
)

// fuzzState is a crashed daemon over simulated directories: its state file, its
// leases and its marks.
type fuzzState struct {
	disk, live *simFS
	folder     string
	saved      Saved
}

func newFuzzState(tb testing.TB) *fuzzState {
	tb.Helper()
	f := &fuzzState{disk: newSimFS(false), live: newSimFS(false), saved: savedWith(testLease(1, 1), testLease(2, 2))}
	cached := testLease(3, 3)
	f.saved.Cached = &cached
	s, proc, err := f.open()
	if err != nil {
		tb.Fatal(err)
	}
	sv, err := s.Service("default")
	if err != nil {
		tb.Fatal(err)
	}
	mustSave(tb, sv, f.saved)
	sv.RaiseMark(testMark)
	if err := s.Sync(); err != nil {
		tb.Fatal(err)
	}
	proc.kill(f.disk, f.live)
	f.folder = s.folder
	return f
}

func (f *fuzzState) open() (*State, *simProc, error) {
	proc := &simProc{pid: 1}
	opts := optionsOf("m", "b")
	opts.Log = zap.NewNop()
	s, err := OpenOn(context.Background(), f.disk.open(proc, "/state"), f.live.open(proc, "/live"), opts)
	return s, proc, err
}

func (f *fuzzState) stateFile() *simNode { return f.disk.at("/state/" + stateName) }
func (f *fuzzState) in(name string) *simNode {
	return f.live.at("/live/" + f.folder + "/" + name)
}

// overwrite puts other content under the inode without a trace, which no kernel
// allows: what is checked here is the content alone.
func overwrite(fs *simFS, n *simNode, content []byte) {
	changed := n.changed
	fs.write(n, content)
	n.changed = changed
}

// damage are the ways in which a file goes bad by itself.
func damage(f *testing.F, content []byte) {
	f.Add(content)
	f.Add([]byte{})
	f.Add(make([]byte, len(content)))
	f.Add(content[:len(content)/2])
	f.Add(append(slices.Clone(content), content...))
	for _, i := range []int{0, 10, 16, 40, len(content) / 2, len(content) - 2} {
		flipped := slices.Clone(content)
		flipped[i] ^= 0x10
		f.Add(flipped)
	}
}

// A state file either is the one that was written, or it is refused with an error
// that names it, or somebody has forged one with all that belongs to it. No lease
// ever comes from it.
func FuzzStateFile(f *testing.F) {
	damage(f, newFuzzState(f).stateFile().content())
	f.Add(sealText(stateKind, []byte(`{"identity":"`+strings.Repeat("a", folderNameLen)+`","services":{"x":{"floorMs":5}}}`)))
	f.Add(sealText(stateKind, []byte(`{"services":{"x":{"held":[`+leaseJSON+`]}}}`)))
	f.Fuzz(func(t *testing.T, content []byte) {
		w := newFuzzState(t)
		same := bytes.Equal(content, w.stateFile().content())
		overwrite(w.disk, w.stateFile(), content)
		s, _, err := w.open()
		if err != nil {
			var e *FileError
			if !errors.As(err, &e) || e.Path != "/state/"+stateName || e.Remedy == "" {
				t.Fatalf("error is %v", err)
			}
			return
		}
		for name, saved := range s.saved {
			if saved.leases() > 0 && (s.folder != w.folder || name != "default" || !reflect.DeepEqual(all(saved), all(w.saved))) {
				t.Errorf("service %q has leases of a state file: %+v", name, saved)
			}
		}
		if same && s.saved["default"].leases() != 3 {
			t.Errorf("the file that was written is not enough: %+v", s.saved)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A leases file that is not the very one is either refused, or somebody has forged
// one with all that belongs to it.
func FuzzLeasesFile(f *testing.F) {
	damage(f, newFuzzState(f).in(leasesName).content())
	f.Fuzz(func(t *testing.T, content []byte) {
		w := newFuzzState(t)
		before := w.in(leasesName).content()
		overwrite(w.live, w.in(leasesName), content)
		s, _, err := w.open()
		if err != nil {
			t.Fatal(err)
		}
		var file leasesFile
		sealed := unseal("", leasesKind, "", content, &file) == nil
		adopted := 0
		for _, saved := range s.saved {
			adopted += saved.leases()
			if err := saved.validate(); err != nil {
				t.Errorf("adopted: %v", err)
			}
		}
		if adopted > 0 && !sealed {
			t.Errorf("%d leases come from a damaged file", adopted)
		}
		if bytes.Equal(content, before) && adopted != 3 {
			t.Errorf("the file that was written is not enough: %+v", s.saved)
		}
		if sv, err := s.Service("default"); err != nil || sv.Mark() != testMark {
			t.Errorf("mark %d, %v", sv.Mark(), err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Marks with any content leave a daemon that starts, with a mark that is not below
// the floor; where they are not those that were written, no lease is adopted with
// a lower mark.
func FuzzMarks(f *testing.F) {
	whole := newFuzzState(f).in(marksName).content()
	// The table without its free slots, which the target puts back: smaller inputs
	// are mutated better.
	damage(f, whole[:marksHeader+2*slotSize])
	double := slices.Clone(whole[:marksHeader+2*slotSize])
	copy(double[marksHeader+slotSize:], double[marksHeader:marksHeader+slotSize])
	f.Add(double)
	f.Fuzz(func(t *testing.T, content []byte) {
		w := newFuzzState(t)
		table := slices.Clone(whole)
		copy(table, content)
		overwrite(w.live, w.in(marksName), table)
		if len(content) == 0 || len(content) > len(table) {
			overwrite(w.live, w.in(marksName), content)
		}
		s, _, err := w.open()
		if err != nil {
			t.Fatal(err)
		}
		sv, err := s.Service("default")
		if err != nil && !errors.Is(err, ErrTooManyServices) {
			t.Fatal(err)
		}
		if err == nil {
			if sv.Mark() < testMark {
				t.Errorf("the mark is %d", sv.Mark())
			}
			sv.RaiseMark(sv.Mark() + 1)
			for _, l := range all(sv.Load()) {
				if !slices.ContainsFunc(all(w.saved), func(o lease.Lease) bool { return o == l }) {
					t.Errorf("lease %v comes from the marks", l)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
