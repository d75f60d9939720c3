package state

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// filesDir is a directory of files that are only read.
type filesDir struct {
	Dir
	files map[string][]byte
}

var fuzzedID = FileID{Device: 1, Inode: 2}

func (d filesDir) Path() string { return "/fuzzed" }

func (d filesDir) Read(name string) ([]byte, error) {
	content, ok := d.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return content, nil
}

func (d filesDir) Map(name string, _ bool) (*Mapping, error) {
	content := d.files[name]
	if len(content) < 8 || len(content)%8 != 0 {
		return nil, damagedMarks(name, "its size")
	}
	words := make([]int64, len(content)/8)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(content)), content)
	return &Mapping{Words: words, ID: fuzzedID, Unmap: func() error { return nil }}, nil
}

// damage returns the content, and what becomes of files by themselves.
func damage(content []byte) [][]byte {
	all := [][]byte{content, {}, make([]byte, len(content)), content[:len(content)/2], append(slices.Clone(content), content...)}
	for _, i := range []int{0, 10, 16, 40, len(content) / 2, len(content) - 2} {
		flipped := slices.Clone(content)
		flipped[i] ^= 0x10
		all = append(all, flipped)
	}
	return all
}

// A state file is valid, or refused with an error that names it. No lease comes
// from it.
func FuzzStateFile(f *testing.F) {
	doc := document{FloorMS: testMark, Saved: savedWith()}
	written, err := seal(stateKind, stateFile{Folder: newFolderName(), Live: "/live", Services: map[string]document{"default": doc}})
	must.Succeed(f, err)
	for _, content := range damage(written) {
		f.Add(content)
	}
	f.Add(sealText(stateKind, []byte(`{"identity":"`+strings.Repeat("a", folderNameLen)+`","services":{"x":{"floorMs":5}}}`)))
	f.Add(sealText(stateKind, []byte(`{"services":{"x":{"held":[`+leaseJSON+`]}}}`)))
	f.Fuzz(func(t *testing.T, content []byte) {
		file, _, err := readState(filesDir{files: map[string][]byte{stateName: content}})
		if err != nil {
			var e *FileError
			if !errors.As(err, &e) || e.Path != "/fuzzed/"+stateName || e.Remedy == "" || bytes.Equal(content, written) {
				t.Fatalf("error is %v", err)
			}
			return
		}
		for name, doc := range file.Services {
			if err := doc.validate(); err != nil || doc.leases() > 0 {
				t.Errorf("service %q has %+v, %v", name, doc, err)
			}
		}
	})
}

// A folder with any content can be read. Leases are adopted from a file with the
// right checksum only, and marks that are accepted can be used.
func FuzzFolder(f *testing.F) {
	saved := savedWith(testLease(1, 1), testLease(2, 2))
	table := memoryMarks()
	if _, err := table.add("default", testMark); err != nil {
		f.Fatal(err)
	}
	table.announce(3, false)
	marks := slices.Clone(bytesOf(table.m.Words))
	host := Identity{MachineID: "m", BootID: "b"}
	folder := FileID{Device: 1, Inode: 7}
	leases, err := seal(leasesKind, leasesFile{
		Folder: folder, Machine: host.machine(), Boot: "b", Marks: fuzzedID, Bits: 3,
		Services: map[string]Saved{"default": saved},
	})
	must.Succeed(f, err)
	// The table without its free slots, which the target puts back: smaller inputs
	// are mutated better.
	used := marks[:marksHeader+2*slotSize]
	nameless := slices.Clone(used)
	clear(nameless[marksHeader+lengthOffset : marksHeader+nameOffset])
	for _, content := range damage(leases) {
		f.Add(content, used)
	}
	for _, content := range append(damage(used), nameless) {
		f.Add(leases, content)
	}
	f.Fuzz(func(t *testing.T, written, beside []byte) {
		present := slices.Clone(beside)
		if n := len(beside); n > 0 && n < len(marks) {
			present = append(present, marks[n:]...)
		}
		l := &live{dir: filesDir{files: map[string][]byte{leasesName: written, marksName: present}}, id: folder, identity: host}
		found := l.look(true)
		adopted := 0
		for name, saved := range found.saved {
			if err := saved.validate(); err != nil {
				t.Errorf("service %q: %v", name, err)
			}
			if found.refusal == "" {
				adopted += saved.leases()
			}
		}
		if adopted > 0 && unseal("", leasesKind, "", written, &leasesFile{}) != nil {
			t.Errorf("%d leases come from a damaged file", adopted)
		}
		if bytes.Equal(written, leases) && bytes.Equal(present, marks) && adopted != 2 {
			t.Errorf("%d leases are adopted from the files as they were written: %s", adopted, found.refusal)
		}
		if found.marks == nil {
			return
		}
		_, known := found.marks.names["new"]
		if word, err := found.marks.add("new", 5); err == nil && !known && word.Load() != 5 {
			t.Errorf("a new service has the mark %d", word.Load())
		} else if err != nil && !errors.Is(err, ErrTooManyServices) {
			t.Error(err)
		}
	})
}
