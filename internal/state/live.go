package state

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	leasesName = "leases"
	holderName = "holder"

	leasesRemedy = "no lease of it is adopted; it is written anew"
)

var (
	leasesKind = kind{"kazahana-leases", 2}
	holderKind = kind{"kazahana-holder", 1}
)

// leasesFile holds the leases that make regular and cached fallback IDs, and names its owner: see
// requirement 5.
type leasesFile struct {
	Machine  string           `json:"machine,omitempty"`
	Boot     string           `json:"boot"`
	Folder   FileID           `json:"folder"`
	Marks    FileID           `json:"marks"`
	Bits     uint64           `json:"bits"`
	Services map[string]Saved `json:"services"`
}

// holderFile names the state directory that a folder belongs to.
type holderFile struct {
	Path string `json:"stateDir"`
	FileID
}

// live is a state directory's folder in the live directory.
type live struct {
	dir      Dir
	id       FileID // of the folder
	identity Identity
	err      error // of the last save; unless nil, a crash would cost the leases
}

func newLive(dir Dir, identity Identity) (*live, error) {
	id, err := dir.Identify(".")
	return &live{dir: dir, id: id, identity: identity}, err
}

// openFolder opens the folder and locks it.
func (s *State) openFolder(ctx context.Context, name string) (Dir, error) {
	dir, err := s.base.Sub(name)
	if err != nil {
		return nil, err
	}
	if err = s.lockFolder(ctx, dir); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// lockFolder takes the folder. This process has the state directory, so a holder that names it
// is a predecessor that is dying: it is waited for. A *LockedError says that the daemon of
// another state directory has the folder.
func (s *State) lockFolder(ctx context.Context, dir Dir) error {
	self, err := s.self()
	if err != nil {
		return err
	}
	for said := false; ; said = true {
		err := dir.Lock("")
		if !errors.As(err, new(*LockedError)) || readHolder(dir) != self {
			return err
		}
		if !said {
			s.opts.Log.Warn("a process that was killed and has not ended holds the live state; the start waits for it", zap.String("live", dir.Path()))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(predecessorInterval): // the holder may change meanwhile
		}
	}
}

// self is what holder says in this state directory's folder.
func (s *State) self() (holderFile, error) {
	id, err := s.disk.Identify(".")
	return holderFile{s.disk.Path(), id}, err
}

// readHolder reads the file in a folder; it is zero where it cannot be read.
func readHolder(dir Dir) (h holderFile) {
	content, err := dir.Read(holderName)
	if err != nil || unseal("", holderKind, "", content, &h) != nil {
		return holderFile{}
	}
	return h
}

// claim writes the folder's holder. If it fails, a successor that finds the folder locked
// takes itself for a copy, which costs it the leases.
func (s *State) claim(dir Dir) error {
	self, err := s.self()
	if err != nil || readHolder(dir) == self {
		return err
	}
	content, err := seal(holderKind, self)
	if err != nil {
		return err
	}
	return dir.Replace(holderName, content)
}

// found is the content of a folder that an earlier life left.
type found struct {
	saved   map[string]Saved // nil: missing or damaged
	marks   *marks           // nil: missing or damaged
	damage  error            // why marks or leases cannot be read; nil if they are only missing
	refusal string           // why the leases are not adopted; "" if they may be
}

// fits reports whether the next life goes on in these files.
func (f found) fits() bool { return f.saved != nil && f.refusal == "" }

// look reads the folder.
func (l *live) look(writable bool) (f found) {
	f.marks, f.damage = openMarks(l.dir, writable)
	if isMissing(f.damage) {
		f.damage = nil
	}
	file, err := l.read()
	if err == nil {
		f.saved, f.refusal = file.Services, l.refusal(file, f.marks)
	} else if !isMissing(err) {
		f.damage = err
	}
	return f
}

// read reads the leases file.
func (l *live) read() (file leasesFile, err error) {
	content, err := l.dir.Read(leasesName)
	if err != nil {
		return file, err
	}
	path := joinPath(l.dir, leasesName)
	if err := unseal(path, leasesKind, leasesRemedy, content, &file); err != nil {
		return file, err
	}
	for name, saved := range file.Services {
		if err := saved.validate(); err != nil {
			return file, &FileError{Path: path, Problem: "is damaged", Err: fmt.Errorf("service %q: %w", name, err), Remedy: leasesRemedy}
		}
	}
	return file, nil
}

// refusal says why the leases of the file must not be used, or "" if they may.
//
// The boot ID is random and new at each boot, so it rules out every other machine by
// itself. A missing machine ID is therefore compared like any other value.
func (l *live) refusal(file leasesFile, m *marks) string {
	switch {
	case m == nil:
		return "the marks are missing or damaged"
	case l.identity.BootID == "":
		return "this host's boot ID cannot be read"
	case file.Machine != l.identity.machine():
		return "they were saved on another machine"
	case file.Boot != l.identity.BootID:
		return "they were saved before the last boot"
	case file.Folder != l.id:
		return "they were saved in another folder"
	case file.Marks != m.m.ID:
		return "the marks were replaced since"
	case !m.expect(file.Bits):
		return "an older file was put back, or a lease was lost and the change could not be written"
	}
	for name, service := range file.Services {
		if _, known := m.names[name]; !known && service.leases() > 0 {
			return fmt.Sprintf("the marks do not know service %q", name)
		}
	}
	return ""
}

// save replaces the leases file. A crash during the call leaves the old one or the new
// one to adopt; after a loss, the new one or none.
func (l *live) save(saved map[string]Saved, m *marks, loss bool) error {
	bits := newBits()
	m.announce(bits, loss)
	err := l.write(leasesFile{
		Machine: l.identity.machine(), Boot: l.identity.BootID, Folder: l.id, Marks: m.m.ID, Bits: bits, Services: saved,
	})
	if err == nil {
		m.conclude(bits)
	}
	l.err = err
	return err
}

// write writes the file, unless the next start would look for it elsewhere, or find other
// marks beside it.
func (l *live) write(file leasesFile) error {
	content, err := seal(leasesKind, file)
	if err != nil {
		return err
	}
	if err := l.dir.Current(); err != nil {
		return err
	}
	if id, err := l.dir.Identify(marksName); err != nil || id != file.Marks {
		return &FileError{Path: joinPath(l.dir, marksName), Problem: "was removed or replaced while this process uses it", Err: err}
	}
	return l.dir.Replace(leasesName, content)
}

// newBits are those of a save. They are not 0: done is, after a loss.
func newBits() (bits uint64) {
	for bits == 0 {
		var b [8]byte
		rand.Read(b[:]) // never fails (crypto/rand ends the program instead)
		bits = binary.NativeEndian.Uint64(b[:])
	}
	return bits
}

// tellOfLive logs that a save has failed, once until one succeeds.
func (s *State) tellOfLive(err error) {
	switch {
	case err != nil && !s.said:
		s.opts.fail("the live state cannot be written; IDs go on, no lease is released, and a crash may cost the leases", err)
	case err == nil && s.said:
		s.opts.Log.Info("the live state is up to date again", zap.String("live", s.live.dir.Path()))
	}
	s.said = err != nil
}
