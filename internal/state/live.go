package state

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"
)

const (
	leasesName = "leases"
	leasesKind = "kazahana-leases"

	leasesRemedy = "no lease of it is adopted; it is written anew"

	// abandonedAfter is how long a folder without a lock is kept after its last
	// lease has ended, and after its last ID. A daemon that comes back later starts
	// from the floors in its state directory.
	abandonedAfter = time.Hour
)

// leasesFile holds the leases that make regular and cached fallback IDs. It
// identifies itself in several ways, so that a copy is never adopted: by the boot, its
// own inode, that of the marks, and a sequence that the marks expect.
type leasesFile struct {
	Folder   string              `json:"identity"`
	Machine  string              `json:"machine,omitempty"`
	Boot     string              `json:"boot"`
	File     FileID              `json:"file"`
	Marks    FileID              `json:"marks"`
	Sequence int64               `json:"sequence"`
	Services map[string]document `json:"services"`
}

// live is a state directory's folder in the live directory, locked.
type live struct {
	dir      Dir
	folder   string
	identity Identity
	leases   FileID // of the leases file that was written last
	sequence int64  // of the last attempt to write one: no file has a greater one
	expect   int64  // the expect word that was last stored in the marks
	err      error  // of the last attempt; unless nil, a crash would cost the leases
}

// found is the content of a folder that an earlier life left.
type found struct {
	saved   map[string]Saved
	marks   *marks           // nil: missing or damaged
	damage  error            // why marks or leases cannot be read; nil if they are only missing
	refusal string           // why the leases are not adopted; "" if they may be
	latest  bool             // the leases file is the folder's, and no later one is known of
	read    map[string]int64 // the marks as they were before this process changed their ID
	fresh   bool             // the folder is empty
}

// look reads the folder.
func (l *live) look(writable bool) found {
	f := found{saved: map[string]Saved{}}
	f.read = readMarks(l.dir) // openMarks changes their ID: what somebody else writes after it goes unnoticed
	m, err := openMarks(l.dir, writable)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.damage = err
	}
	if f.marks = m; m != nil {
		l.sequence, _ = m.expect()
	}
	content, id, err := l.dir.Read(leasesName)
	if errors.Is(err, fs.ErrNotExist) {
		f.fresh = m == nil && f.damage == nil
		return f
	}
	var file leasesFile
	if err == nil {
		err = unseal(joinPath(l.dir, leasesName), leasesKind, leasesRemedy, content, &file)
	}
	if err != nil {
		f.damage = err
		return f
	}
	l.sequence = max(l.sequence, file.Sequence)
	f.refusal = l.refusal(file, id, m)
	if m != nil {
		least, _ := m.expect()
		f.latest = file.Folder == l.folder && file.Sequence >= least
	}
	for name, doc := range file.Services {
		saved, err := doc.saved()
		if err != nil {
			f.damage = &FileError{Path: joinPath(l.dir, leasesName), Problem: "is damaged", Err: fmt.Errorf("service %q: %w", name, err), Remedy: leasesRemedy}
			return found{saved: map[string]Saved{}, marks: m, damage: f.damage}
		}
		if f.refusal == "" && saved.leases() > 0 {
			if _, known := m.get(name); !known {
				f.refusal = fmt.Sprintf("the marks do not know service %q", name)
			}
		}
		f.saved[name] = saved
	}
	return f
}

// refusal says why the leases of the file must not be used, or "" if they may.
//
// The boot ID is random and new at each boot, so it rules out every other machine by
// itself. A missing machine ID is therefore compared like any other value.
func (l *live) refusal(file leasesFile, id FileID, m *marks) string {
	if m == nil {
		return "the marks are missing or damaged"
	}
	least, void := m.expect()
	switch {
	case l.identity.BootID == "":
		return "this host's boot ID cannot be read"
	case file.Machine != l.identity.machine():
		return "they were saved on another machine"
	case file.Boot != l.identity.BootID:
		return "they were saved before the last boot"
	case file.Folder != l.folder:
		return "the folder had another name when they were saved"
	case file.File.Device != id.Device || file.File.Inode != id.Inode:
		return leasesName + " is a copy of the file they were saved in"
	case file.Marks != m.m.ID:
		return "the marks were replaced or overwritten since"
	case void:
		return "a later change of them could not be written, or they went on in another folder"
	case file.Sequence < least:
		return "an older file was put back"
	}
	return ""
}

// write replaces the leases file. A crash during the call may leave the old one to
// adopt; after a failed call none is adopted.
func (l *live) write(saved map[string]Saved, m *marks) error {
	file := leasesFile{
		Folder: l.folder, Machine: l.identity.machine(), Boot: l.identity.BootID, Marks: m.m.ID,
		Sequence: l.sequence + 1, Services: map[string]document{},
	}
	for name, s := range saved {
		file.Services[name] = documentOf(s)
	}
	l.sequence++
	var encoding error
	err := l.dir.Replace(leasesName, func(id FileID) (content []byte) {
		file.File = FileID{Device: id.Device, Inode: id.Inode}
		content, encoding = seal(leasesKind, file)
		return content
	})
	if err = errors.Join(encoding, err); err == nil {
		l.leases, err = l.dir.Identify(leasesName)
	}
	if l.err = err; err != nil {
		l.tell(m, l.sequence|voidFlag)
	} else {
		l.tell(m, l.sequence)
	}
	return err
}

// tell stores the expect word in the marks.
func (l *live) tell(m *marks, expect int64) {
	l.expect = expect
	m.setExpect(expect)
}

// changed returns an error if a name no longer leads to the file that this process
// uses, or if another process wrote to it.
func (l *live) changed(m *marks) error {
	if err := l.dir.Current(); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		want FileID
	}{{marksName, m.m.ID}, {leasesName, l.leases}} {
		if f.name == leasesName && l.err != nil {
			continue // the last attempt failed, so the file's ID is unknown
		}
		id, err := l.dir.Identify(f.name)
		path := joinPath(l.dir, f.name)
		if errors.Is(err, fs.ErrNotExist) {
			return &FileError{Path: path, Problem: "was removed while this process uses it"}
		}
		if err != nil {
			return err
		}
		if id != f.want {
			return &FileError{Path: path, Problem: "was replaced or overwritten while this process uses it"}
		}
	}
	return nil
}

// leasesIntact reports whether the leases file is the one that was written last,
// whatever its ChangedNS.
func (l *live) leasesIntact() bool {
	if l.err != nil {
		return true // the file is void anyway
	}
	content, id, err := l.dir.Read(leasesName)
	var file leasesFile
	return err == nil && id.Inode == l.leases.Inode && id.Device == l.leases.Device &&
		unseal("", leasesKind, "", content, &file) == nil &&
		file.Folder == l.folder && file.Sequence == l.sequence && file.File.Inode == id.Inode
}

// Sweep removes the folders beside this one whose daemons are gone. Run calls it a second after
// the start, and each hour.
func (s *State) Sweep() {
	s.mu.Lock()
	base, own, closed := s.base, s.folder, s.closed
	s.mu.Unlock()
	if base != nil && !closed {
		removeAbandoned(base, own, time.Now().UnixMilli(), s.opts.Log)
	}
}

// removeAbandoned removes the folders of state directories that are gone.
func removeAbandoned(base Dir, own string, nowMS int64, log *zap.Logger) {
	names, err := base.Subs()
	if err != nil {
		log.Warn("the live directory cannot be searched for left-over folders", zap.Error(err))
		return
	}
	for _, name := range names {
		if !isFolderName(name) || name == own {
			continue
		}
		switch removed, err := removeIfAbandoned(base, name, nowMS); {
		case err != nil:
			log.Warn("a left-over folder of the live directory cannot be removed", zap.Error(err))
		case removed:
			log.Info("removed a folder of the live directory whose daemon is gone", zap.String("folder", joinPath(base, name)))
		}
	}
}

// removeIfAbandoned removes the folder under its lock. It does not lock a folder that
// is still needed, because its daemon might find the lock taken.
func removeIfAbandoned(base Dir, name string, nowMS int64) (bool, error) {
	dir, err := base.Sub(name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // another daemon was faster
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	if isNeeded(dir, nowMS) {
		return false, nil
	}
	var locked *LockedError
	if err := dir.Lock(time.Now()); errors.As(err, &locked) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if isNeeded(dir, nowMS) {
		return false, nil // its daemon has come and gone
	}
	return true, base.RemoveSub(name)
}

// isNeeded reports whether the end of the last lease in the folder, the last change of
// its leases and marks, or its last ID is less than abandonedAfter ago. It asks first
// for what costs least, since there may be many folders.
func isNeeded(dir Dir, nowMS int64) bool {
	recent := func(ms int64) bool { return nowMS-ms <= abandonedAfter.Milliseconds() }
	for _, name := range []string{leasesName, marksName} {
		if id, err := dir.Identify(name); err == nil && recent(id.ChangedNS/int64(time.Millisecond)) {
			return true
		}
	}
	// A daemon can make fallback IDs for long after its last lease.
	for _, ms := range readMarks(dir) {
		if recent(ms) {
			return true
		}
	}
	content, _, err := dir.Read(leasesName)
	var file leasesFile
	if err != nil || unseal("", leasesKind, "", content, &file) != nil {
		return false
	}
	for _, doc := range file.Services {
		for _, l := range (Saved{Held: doc.Held, Cached: doc.Cached}).all() {
			if recent(l.ReservedUntil) {
				return true
			}
		}
	}
	return false
}
