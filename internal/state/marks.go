package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"unicode/utf8"
	"unsafe"
)

// The marks file. All numbers are in the machine's byte order, since they are
// used in place:
//
//	   0  magic, 8 bytes
//	   8  version and number of slots, 4 bytes each
//	  16  next, 8 bytes: the bits of the save that was begun last
//	  24  done, 8 bytes: the bits of the last save that has ended; 0: none, or a lease
//	      was lost since
//	4096  slots of 256 bytes:
//	       +0  mark, 8 bytes: Unix milliseconds
//	       +8  length of the name, 8 bytes; 0 = free
//	      +16  name
const (
	marksName    = "marks"
	marksMagic   = "KZHNMARK"
	marksVersion = 4

	// MaxServices is how many services one state directory can hold over its whole
	// life.
	MaxServices = 256
	// MaxServiceName is the longest name of a service, in bytes.
	MaxServiceName = slotSize - nameOffset

	// maxMark is the latest time that is taken for a mark, in the year 144,680.
	maxMark = 1<<52 - 1

	nextOffset   = 16
	doneOffset   = 24
	marksHeader  = 4096
	slotSize     = 256
	lengthOffset = 8
	nameOffset   = 16
	marksSize    = marksHeader + MaxServices*slotSize
)

// ErrTooManyServices is wrapped by the error of State.Service when the marks
// file has no slot left.
var ErrTooManyServices = errors.New("too many services")

// marks is the table of marks: mapped from a file, or in memory without one. Only the
// words that slot returns are safe for concurrent use.
type marks struct {
	path  string // "": in memory only
	m     *Mapping
	names map[string]int
}

// memoryMarks is a table without a file.
func memoryMarks() *marks {
	return &marks{m: &Mapping{Words: newMarks(), Unmap: func() error { return nil }}, names: map[string]int{}}
}

// newMarks is an empty table.
func newMarks() []int64 {
	words := make([]int64, marksSize/8)
	b := bytesOf(words)
	copy(b, marksMagic)
	*versionAndSlots(b) = [2]uint32{marksVersion, MaxServices}
	return words
}

func bytesOf(words []int64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
}

func versionAndSlots(b []byte) *[2]uint32 { return (*[2]uint32)(unsafe.Pointer(&b[8])) }

// createMarks writes a table with these marks and opens it. They are in it from the beginning:
// a crash right after it must take none of them back. It writes every byte: on a full disk,
// the first store to a page of a sparse file would fault.
func createMarks(d Dir, with map[string]int64) (*marks, error) {
	table := memoryMarks()
	for _, name := range slices.Sorted(maps.Keys(with)) {
		if _, err := table.add(name, with[name]); err != nil {
			return nil, err
		}
	}
	if err := d.Replace(marksName, bytesOf(table.m.Words)); err != nil {
		return nil, err
	}
	return openMarks(d, true)
}

// openMarks maps the table of a directory.
func openMarks(d Dir, writable bool) (*marks, error) {
	mapping, err := d.Map(marksName, writable)
	if err != nil {
		return nil, err
	}
	m := &marks{path: joinPath(d, marksName), m: mapping, names: map[string]int{}}
	if err := m.read(); err != nil {
		return nil, errors.Join(err, mapping.Unmap())
	}
	return m, nil
}

func damagedMarks(path, what string) *FileError {
	return &FileError{Path: path, Problem: "is damaged: " + what, Remedy: marksRemedy}
}

const marksRemedy = "no lease of it is adopted, and the floor in state_dir is used; it is made anew"

func (m *marks) read() error {
	b := bytesOf(m.m.Words)
	switch {
	case len(b) != marksSize:
		return damagedMarks(m.path, fmt.Sprintf("it has %d bytes instead of %d", len(b), marksSize))
	case string(b[:len(marksMagic)]) != marksMagic:
		return damagedMarks(m.path, "its beginning is not that of a marks file")
	case *versionAndSlots(b) != [2]uint32{marksVersion, MaxServices}:
		return damagedMarks(m.path, "it is of another version or another machine")
	}
	for i := range MaxServices {
		ms, length := m.slot(i, 0).Load(), m.slot(i, lengthOffset).Load()
		switch {
		case ms < 0 || ms > maxMark:
			return damagedMarks(m.path, fmt.Sprintf("the mark in slot %d is not a valid time", i))
		case length < 0 || length > MaxServiceName:
			return damagedMarks(m.path, fmt.Sprintf("slot %d has a name of %d bytes", i, length))
		case length == 0 && ms != 0: // its service would go on without it
			return damagedMarks(m.path, fmt.Sprintf("slot %d has a mark and no name", i))
		case length > 0:
			start := marksHeader + i*slotSize + nameOffset
			m.names[string(b[start:start+int(length)])] = i
		}
	}
	return nil
}

// checkName checks a name that the configuration has let pass.
func checkName(name string) error {
	if name == "" || len(name) > MaxServiceName || !utf8.ValidString(name) {
		return fmt.Errorf("service name %.20q has %d bytes: 1 to %d are allowed, in UTF-8", name, len(name), MaxServiceName)
	}
	return nil
}

// word is the 8-byte value at an offset, which must be a multiple of 8.
func (m *marks) word(offset int) *atomic.Int64 {
	return (*atomic.Int64)(unsafe.Pointer(&m.m.Words[offset/8]))
}

func (m *marks) slot(i, offset int) *atomic.Int64 { return m.word(marksHeader + i*slotSize + offset) }

// announce is the beginning of a save: from now on a leases file with these bits fits.
// After a loss no other one does.
func (m *marks) announce(bits uint64, loss bool) {
	m.word(nextOffset).Store(int64(bits))
	if loss {
		m.word(doneOffset).Store(0) // not before next: that has the bits of the file with the lost lease
	}
}

// conclude is the end of a save: only a leases file with these bits fits.
func (m *marks) conclude(bits uint64) { m.word(doneOffset).Store(int64(bits)) }

// expect reports whether a leases file with these bits fits.
func (m *marks) expect(bits uint64) bool {
	return bits != 0 && (bits == uint64(m.word(nextOffset).Load()) || bits == uint64(m.word(doneOffset).Load()))
}

// add returns the mark of the service, raised to at least ms. It takes a free slot if
// the service has none.
func (m *marks) add(name string, ms int64) (*atomic.Int64, error) {
	i, known := m.names[name]
	if !known {
		if i = m.freeSlot(); i < 0 {
			return nil, fmt.Errorf("%w: there are %d, counting those no longer configured, and room for no more; give the new ones another state_dir",
				ErrTooManyServices, MaxServices)
		}
		start := marksHeader + i*slotSize + nameOffset
		copy(bytesOf(m.m.Words)[start:start+MaxServiceName], name)
		m.slot(i, lengthOffset).Store(int64(len(name))) // last: a slot is free or complete
		m.names[name] = i
	}
	word := m.slot(i, 0)
	word.Store(max(word.Load(), ms))
	return word, nil
}

func (m *marks) freeSlot() int {
	for i := range MaxServices {
		if m.slot(i, lengthOffset).Load() == 0 {
			return i
		}
	}
	return -1
}

// all is the marks of all services.
func (m *marks) all() map[string]int64 {
	all := map[string]int64{}
	for name, i := range m.names {
		all[name] = m.slot(i, 0).Load()
	}
	return all
}

// readMarks is the marks in a directory, without keeping them open; none where they
// cannot be read.
func readMarks(d Dir) map[string]int64 {
	m, err := openMarks(d, false)
	if err != nil {
		return nil
	}
	defer m.m.Unmap()
	return m.all()
}
