package sqlitefile

import (
	"fmt"
	"math"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// On a full disk, changes of what exists go on: the log and the main file have room of their
// own, behind their ends. While the disk has no more, the main file grows no further than that
// room, so that each checkpoint succeeds; new records are refused before, see Session.Room. A
// file system that overwrites nothing in place (btrfs, ZFS) needs new room all the same.
const (
	// logRoom is the room of the log or journal. It is for more pages than maxLog: the log's
	// length is asked for now and then only, and a commit may be large.
	logRoom = 6 << 20
	// mainRoom is the room of the main file, beyond all pages, also the pages that only the log
	// has. It is made anew when less than leastRoom is left.
	mainRoom, leastRoom = 3 << 20, 2 << 20
	// lastRoom is the part of it that new records leave to others.
	lastRoom = 1 << 20
	// metadata is how much of a file's blocks may hold no content.
	metadata = 64 << 10
	pageSize = 4096
	maxPages = math.MaxUint32 - 1 // SQLite's own limit
)

// handle is a descriptor of a file on which SQLite has locks. All Files of a process share
// it: it must not be closed while one of them is open, see fillFile.
type handle struct {
	*os.File
	info os.FileInfo
	uses int
}

var handles struct {
	sync.Mutex
	open []*handle
}

func openHandle(path string) (*handle, error) {
	handles.Lock()
	defer handles.Unlock()
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	for _, h := range handles.open {
		if os.SameFile(h.info, info) {
			h.uses++
			return h, nil
		}
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	h := &handle{file, info, 1}
	handles.open = append(handles.open, h)
	return h, nil
}

// close ends one use; nil has none.
func (h *handle) close() error {
	handles.Lock()
	defer handles.Unlock()
	if h == nil {
		return nil
	}
	if h.uses--; h.uses > 0 {
		return nil
	}
	handles.open = slices.DeleteFunc(handles.open, func(other *handle) bool { return other == h })
	return h.Close()
}

// reserve makes sure of the room, as far as the disk has it, unless there is enough.
func (f *File) reserve() {
	if f.session == nil {
		return
	}
	var pages int64
	if err := f.session.QueryRow("PRAGMA page_count", nil, &pages); err != nil || f.session.limit == 0 && f.allocated >= pages*pageSize+leastRoom {
		return
	}
	if f.kind.Owned {
		f.allocateBeside("-wal")
	} else {
		f.allocateBeside("-journal")
	}
	if f.allocated = blocksOf(f.main.File) - metadata; f.allocated < pages*pageSize+leastRoom {
		f.writingMain(func() { f.allocateMain(pages * pageSize) }) // the system may note a change of the file
	}
	limit := int64(maxPages)
	if f.session.limit = 0; f.allocated < pages*pageSize+leastRoom {
		f.session.limit = max(f.allocated, pages*pageSize)
		limit = f.session.limit / pageSize
	}
	_ = f.session.ExecOnce(fmt.Sprintf("PRAGMA max_page_count=%d", limit))
}

// hasMoreRoom reports whether the main file, which could not grow, has got room since.
func (f *File) hasMoreRoom() bool {
	if f.session == nil {
		return false
	}
	before := f.session.limit
	f.reserve()
	return before > 0 && (f.session.limit == 0 || f.session.limit > before)
}

// allocateBeside gives the log or the journal its room. SQLite has no locks on it.
func (f *File) allocateBeside(suffix string) {
	file, err := openBeside(f.resolved, suffix)
	if err != nil {
		return
	}
	if blocksOf(file) < logRoom {
		allocate(file, logRoom)
	}
	_ = file.Close()
}

// allocateMain gives the main file room; it has, or is to have, so many bytes.
func (f *File) allocateMain(size int64) {
	for f.allocated = size + mainRoom; f.allocated > size; f.allocated -= lastRoom / 2 {
		if allocate(f.main.File, f.allocated) {
			return
		}
	}
}

// blocksOf is how many bytes of the disk the file has, 0 if that is not known.
func blocksOf(file *os.File) int64 {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Fstat(int(file.Fd()), &st) }); err != nil {
		return 0
	}
	return st.Blocks * 512
}

// Room reports whether there is room for new records. On a full disk it is false before
// changes of existing ones fail. Leases need not ask: a daemon's next lease replaces one.
func (s *Session) Room() (bool, error) {
	if s.limit == 0 {
		return true, nil
	}
	size, err := s.Size()
	return size+lastRoom <= s.limit, err
}
