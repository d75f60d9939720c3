package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The marks file, all numbers in the machine's byte order, since they are used
// in place (a file from a machine of the other order has a strange version):
//
//	   0  magic, 8 bytes
//	   8  version, 4 bytes
//	  12  number of slots, 4 bytes
//	  16  generation, 8 bytes: see the package comment
//	4096  slots of 256 bytes:
//	       +0  mark, 8 bytes: Unix ms
//	       +8  label, 8 bytes: CRC-32C of the name << 32 | its length; 0 = free
//	      +16  name
//
// A slot never crosses a disk sector, and the label is stored last: a crash
// leaves a slot that is either free or complete.
const (
	marksMagic   = "KZHNMARK"
	marksVersion = 1

	// MaxServices is how many services one state directory can hold, counting
	// all that it ever held.
	MaxServices = 256
	// MaxServiceName is the longest name of a service, in bytes.
	MaxServiceName = slotSize - nameOffset

	generationOffset = 16
	marksHeader      = 4096
	slotSize         = 256
	labelOffset      = 8
	nameOffset       = 16
	marksSize        = marksHeader + MaxServices*slotSize

	// maxGeneration is far beyond what can be reached; more is damage.
	maxGeneration = 1 << 62
)

// ErrTooManyServices is wrapped by the error of State.Service when the marks
// file has no entry left.
var ErrTooManyServices = errors.New("too many services")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// marks is the table of marks: mapped from a file, or in memory without one.
type marks struct {
	path     string // "": in memory only
	id       fileID
	writable bool
	mem      []byte // of marksSize; nil once closed

	mu     sync.Mutex // guards what follows, and mem while it is closed; raising a mark needs no lock
	names  map[string]int
	dirty  bool   // a slot was taken or a mark lowered since the last sync
	synced uint64 // total() at the last sync
}

// memoryMarks is a table that nothing outlives.
func memoryMarks() *marks {
	words := make([]uint64, marksSize/8) // aligned, which a []byte need not be
	return &marks{mem: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), marksSize), names: map[string]int{}}
}

// createMarks writes an empty marks file and gives it its name when complete.
//
// Every byte is written: a page of a sparse file gets its disk block when it is
// first stored to, and on a full disk that store is a SIGBUS.
func createMarks(dir directory, generation uint64) (err error) {
	f, err := dir.createFile(marksName + newSuffix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	content := make([]byte, marksSize)
	copy(content, marksMagic)
	binary.NativeEndian.PutUint32(content[8:], marksVersion)
	binary.NativeEndian.PutUint32(content[12:], MaxServices)
	binary.NativeEndian.PutUint64(content[generationOffset:], generation)
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fileError(dir.file(marksName), "cannot write it", err)
	}
	return dir.publish(marksName)
}

// openMarks maps the marks file.
func openMarks(dir directory, writable bool) (*marks, error) {
	path := dir.file(marksName)
	mode, prot := os.O_RDONLY, unix.PROT_READ
	if writable {
		mode, prot = os.O_RDWR, unix.PROT_READ|unix.PROT_WRITE
	}
	f, err := os.OpenFile(path, mode|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fileError(path, "cannot open it", err)
	}
	defer f.Close() // the mapping outlives the descriptor
	info, err := f.Stat()
	if err != nil {
		return nil, fileError(path, "cannot look at it", err)
	}
	content := make([]byte, marksHeader)
	if n, err := f.ReadAt(content, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fileError(path, "cannot read it", err)
	} else if err := checkHeader(path, content[:n], info.Size()); err != nil {
		return nil, err
	}
	if writable {
		if err := fillHoles(f, info); err != nil {
			return nil, fileError(path, "cannot give it its disk space", err)
		}
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, marksSize, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, &FileError{Path: path, Problem: "cannot map it into memory", Err: err,
			Remedy: "set state_dir to a directory on a local file system"}
	}
	m := &marks{path: path, id: idOf(info), writable: writable, mem: mem, names: map[string]int{}}
	if err := m.readSlots(); err != nil {
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	m.synced = m.total()
	return m, nil
}

func checkHeader(path string, header []byte, size int64) error {
	if len(header) < len(marksMagic) || string(header[:len(marksMagic)]) != marksMagic {
		if allZero(header) { // cut to nothing, or blocks lost by the file system
			return damagedMarks(path, "its beginning is empty")
		}
		return &FileError{Path: path, Problem: "is not a marks file of kazahana",
			Remedy: "find out what it is and move it away, or set another state_dir"}
	}
	if len(header) < marksHeader {
		return damagedMarks(path, fmt.Sprintf("it has %d bytes instead of %d", size, marksSize))
	}
	if version := binary.NativeEndian.Uint32(header[8:]); version != marksVersion {
		return otherVersion(path, int64(version), marksVersion)
	}
	if size != marksSize || binary.NativeEndian.Uint32(header[12:]) != MaxServices {
		return damagedMarks(path, fmt.Sprintf("it has %d bytes instead of %d", size, marksSize))
	}
	return nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

func damagedMarks(path, what string) *FileError {
	return &FileError{Path: path, Problem: "is damaged: " + what,
		Remedy: "put the right file back, or move it away and run `kazahanad state reset-floor`, which drops the leases and starts the marks at the present time"}
}

func lostMarks(path, problem string) *FileError {
	return &FileError{Path: path, Problem: problem,
		Remedy: "put the right file back, or run `kazahanad state reset-floor`, which drops the leases and starts the marks at the present time"}
}

// fillHoles gives a file that a backup program restored as a sparse one its
// blocks. The caller holds the lock, so nobody raises a mark in between.
func fillHoles(f *os.File, info os.FileInfo) error {
	if diskUsage(info) >= marksSize {
		return nil
	}
	content := make([]byte, marksSize)
	if _, err := f.ReadAt(content, 0); err != nil {
		return err
	}
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return f.Sync()
}

func (m *marks) readSlots() error {
	path := m.path
	if generation := m.word(generationOffset).Load(); generation < 0 || generation >= maxGeneration {
		return damagedMarks(path, "its generation is out of range")
	}
	for i := range MaxServices {
		label, mark := uint64(m.slot(i, labelOffset).Load()), m.slot(i, 0).Load()
		if label == 0 {
			if mark != 0 {
				return damagedMarks(path, fmt.Sprintf("entry %d has a mark and no name", i))
			}
			continue
		}
		length := label & 0xffffffff
		if length > MaxServiceName {
			return damagedMarks(path, fmt.Sprintf("entry %d has a name of %d bytes", i, length))
		}
		start := marksHeader + i*slotSize + nameOffset
		name := string(m.mem[start : start+int(length)])
		if label != nameLabel(name) {
			return damagedMarks(path, fmt.Sprintf("the name of entry %d does not match its checksum", i))
		}
		if _, double := m.names[name]; double {
			return damagedMarks(path, fmt.Sprintf("service %q has two entries", name))
		}
		if mark < 0 {
			return damagedMarks(path, fmt.Sprintf("the mark of service %q is negative", name))
		}
		m.names[name] = i
	}
	return nil
}

func nameLabel(name string) uint64 {
	return uint64(crc32.Checksum([]byte(name), castagnoli))<<32 | uint64(len(name))
}

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("a service has no name")
	case len(name) > MaxServiceName:
		return fmt.Errorf("service name %.20q... has %d bytes; %d are allowed", name, len(name), MaxServiceName)
	case !utf8.ValidString(name):
		return fmt.Errorf("service name %q is not UTF-8", name)
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("service name %q contains a control character", name)
		}
	}
	return nil
}

// word is the 8-byte value at an offset, which is a multiple of 8 here always.
func (m *marks) word(offset int) *atomic.Int64 {
	return (*atomic.Int64)(unsafe.Pointer(&m.mem[offset]))
}

func (m *marks) slot(i, offset int) *atomic.Int64 { return m.word(marksHeader + i*slotSize + offset) }

func (m *marks) generation() uint64 { return uint64(m.word(generationOffset).Load()) }

func (m *marks) setGeneration(g uint64) { m.word(generationOffset).Store(int64(g)) }

// add returns the mark of the service, and takes a slot for it when it has
// none. The slot is on disk when add returns nil.
func (m *marks) add(name string) (*atomic.Int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, known := m.names[name]
	if !known {
		var err error
		if i, err = m.freeSlot(); err != nil {
			return nil, err
		}
		start := marksHeader + i*slotSize + nameOffset
		copy(m.mem[start:start+MaxServiceName], name)
		m.slot(i, labelOffset).Store(int64(nameLabel(name)))
		m.names[name], m.dirty = i, true
	}
	if m.dirty {
		if err := m.syncLocked(); err != nil {
			return nil, err
		}
	}
	return m.slot(i, 0), nil
}

func (m *marks) freeSlot() (int, error) {
	for i := range MaxServices {
		if m.slot(i, labelOffset).Load() == 0 {
			return i, nil
		}
	}
	where := "a state in memory"
	if m.path != "" {
		where = m.path
	}
	return 0, fmt.Errorf("%w: %s holds the marks of %d services, counting those no longer configured, and has room for no more; give the new ones another state_dir",
		ErrTooManyServices, where, MaxServices)
}

// get returns the mark of a service that has a slot.
func (m *marks) get(name string) (ms int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := m.names[name]
	if !ok {
		return 0, false
	}
	return m.slot(i, 0).Load(), true
}

// lower is the one way down for a mark; see ResetFloor. The service has a slot.
func (m *marks) lower(name string, ms int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slot(m.names[name], 0).Store(ms)
	m.dirty = true
}

// total changes whenever a mark or the generation does, since both only rise;
// lower sets dirty itself.
func (m *marks) total() uint64 {
	sum := m.generation()
	for i := range MaxServices {
		sum += uint64(m.slot(i, 0).Load())
	}
	return sum
}

// sync brings the marks to the disk if they changed.
func (m *marks) sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.syncLocked()
}

func (m *marks) syncLocked() error {
	if m.mem == nil || !m.writable {
		return nil
	}
	total := m.total() // before the call: what is raised during it is for the next
	if !m.dirty && total == m.synced {
		return nil
	}
	if err := unix.Msync(m.mem, unix.MS_SYNC); err != nil {
		return fileError(m.path, "cannot sync it to the disk", err)
	}
	m.dirty, m.synced = false, total
	// The mapping goes on without a name; the next start would not find it.
	return checkPresent(m.path, m.id)
}

// checkPresent reports, as an error, that the file in use is no longer the one
// of that name.
func checkPresent(path string, id fileID) error {
	info, err := os.Stat(path)
	if err == nil && idOf(info) == id {
		return nil
	}
	return &FileError{Path: path, Problem: "was removed or replaced while this process uses it", Err: errors.Unwrap(err),
		Remedy: "put the old file back, or restart with the state directory in order"}
}

// close syncs and unmaps. Nothing may use the marks after it.
func (m *marks) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.syncLocked()
	mem := m.mem
	m.mem = nil
	if mem == nil || m.path == "" {
		return err
	}
	return errors.Join(err, unix.Munmap(mem))
}
