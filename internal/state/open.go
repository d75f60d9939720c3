package state

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"go.uber.org/zap"
)

// Open locks the state directory, creates missing files, and decides whether leases of
// an earlier life are adopted. While a predecessor that is dying still holds the live
// state, it waits, until ctx is done.
//
// Errors: *LockedError if another process has the directory, *FileError about a file
// or a directory.
func Open(ctx context.Context, dir string, opts Options) (*State, error) {
	opts = opts.withLog()
	disk, err := openStateDir(dir, true, os.Geteuid())
	if err != nil {
		return nil, err
	}
	if disk.everybody() {
		opts.Log.Warn("every user may write to the state directory; run chmod o-w", zap.String("state_dir", disk.path))
	}
	if opts.Live == "" {
		return OpenOn(ctx, disk, nil, opts)
	}
	live, err := openLiveDir(opts.Live, true, os.Geteuid())
	if err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	return OpenOn(ctx, disk, live, opts)
}

// OpenOn is Open on directories of any kind, which it closes. live is nil
// without a live directory; opts.Live is not read.
func OpenOn(ctx context.Context, disk, live Dir, opts Options) (_ *State, err error) {
	s := newState(opts, disk, live)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeLive(), disk.Close())
		}
	}()
	file, known, err := s.begin()
	if err != nil {
		return nil, err
	}
	s.choosePlace(file, known)
	if err := s.openLive(ctx); err != nil {
		return nil, err
	}
	s.settle(file)
	if s.live != nil {
		_ = s.saveLive(false) // it tells; the file's present content is not harmful
	}
	// A daemon that has run here before can start without writing to the disk.
	if err := s.sync(); err != nil && !known {
		return nil, err
	} else if err != nil {
		s.opts.fail("the state directory cannot be written; IDs go on, and kill -9 loses nothing: only a power failure would", err)
	}
	return s, nil
}

// begin locks the state directory and reads its file; known: there is one.
func (s *State) begin() (file stateFile, known bool, err error) {
	if err = s.disk.Lock(lockName); err == nil {
		file, s.written, err = readState(s.disk)
	}
	s.learn(file)
	return file, s.written != nil, err
}

// learn goes on from the state file.
func (s *State) learn(file stateFile) {
	for name, doc := range file.Services {
		sv := s.known(name)
		sv.saved = doc.Saved
		sv.mark.Store(doc.FloorMS)
	}
}

// settle ends a change that the last life may have left in the middle.
func (s *State) settle(file stateFile) {
	s.chooseOwner(file)
	for _, sv := range s.services {
		sv.saved = sv.saved.Settled(sv.Mark())
	}
}

// Ephemeral is a state that lives in memory only (state_dir: none).
func Ephemeral(opts Options) *State {
	s := newState(opts, nil, nil)
	s.opts.Log.Warn("without a state directory nothing survives a restart: leases are acquired anew, so that while the provider is unreachable " +
		"there are only random fallback IDs or none; that IDs go on ascending rests on the clock alone; a changed epoch goes unnoticed; locks that are held across a restart are lost")
	s.owner, s.marks = ownerRecord{Name: newOwner()}, memoryMarks()
	return s
}

// choosePlace decides on the identity, which belongs to one live directory. If an
// operator changes live_dir and later goes back, the leases in the old directory are
// out of date and must not be adopted. The marks there still count.
func (s *State) choosePlace(file stateFile, known bool) {
	if s.folder = file.Folder; s.base != nil {
		s.place = s.base.Path()
	}
	switch {
	case !known:
		s.folder = newFolderName()
	case file.Live != s.place:
		s.opts.Log.Info("the leases and marks are kept in another place than before; leases of the last run are not adopted",
			zap.String("before", file.Live), zap.String("now", s.place))
		s.folder = newFolderName()
		s.learnFormer(file)
	}
}

// learnFormer raises the marks to those that the last life left in another place,
// if they can be read.
func (s *State) learnFormer(file stateFile) {
	former := s.opts
	former.Live = file.Live
	_, marks := new(Report).look(former, file, s.disk)
	s.learnMarks(marks)
}

// openLive opens the marks and, in a live directory, the leases.
func (s *State) openLive(ctx context.Context) error {
	l := &live{dir: s.disk}
	if s.base == nil {
		s.opts.Log.Warn("there is no directory in memory (live_dir): after a crash no lease is adopted, and a frozen disk stops the IDs",
			zap.String("state_dir", s.disk.Path()))
	} else if err := s.openOwnFolder(ctx); err != nil {
		return err
	} else {
		l = s.live
	}
	f := l.look(true)
	s.marks = f.marks
	s.takeOver(f)
	if f.fits() || s.live == nil && f.marks != nil {
		return nil
	}
	return s.renewMarks(l.dir)
}

// openOwnFolder opens the folder of this identity or, if the daemon of another state directory
// has that, of a new one.
func (s *State) openOwnFolder(ctx context.Context) error {
	dir, err := s.openFolder(ctx, s.folder)
	if errors.As(err, new(*LockedError)) {
		s.opts.Log.Warn("this state directory is a copy of one that a running daemon uses; it begins under a new identity, without leases",
			zap.String("state_dir", s.disk.Path()), zap.String("live", s.base.Path()+"/"+s.folder))
		s.folder = newFolderName()
		dir, err = s.openFolder(ctx, s.folder)
	}
	if err != nil {
		return err
	}
	if s.live, err = newLive(dir, s.opts.identity()); err != nil {
		return errors.Join(err, dir.Close())
	}
	if err := s.claim(dir); err != nil {
		s.opts.fail("the folder of the live state cannot say whose it is: after a crash a start may take this state directory for a copy", err)
	}
	return nil
}

// renewMarks replaces the marks file by a new one with the same marks. Another process may use
// the old one: a user may have moved it here from its folder.
func (s *State) renewMarks(dir Dir) error {
	old := s.marks
	var with map[string]int64
	if old != nil {
		with = old.all()
	}
	m, err := createMarks(dir, with)
	if err != nil {
		return err
	}
	s.marks = m
	if old != nil {
		return old.m.Unmap()
	}
	return nil
}

// takeOver goes on from what an earlier life left in the folder.
func (s *State) takeOver(f found) {
	if f.damage != nil {
		s.opts.fail("the live state is damaged: no lease is adopted, and IDs go on above the floor in the state directory, which may be a second behind", f.damage)
	}
	var dropped []string
	for name, saved := range f.saved {
		if f.refusal == "" {
			s.known(name).saved = saved
		} else if saved.leases() > 0 {
			dropped = append(dropped, name)
		}
	}
	if len(dropped) > 0 {
		slices.Sort(dropped)
		s.opts.Log.Warn("leases of an earlier run are not adopted; their slots come free after the quarantine",
			zap.String("services", strings.Join(dropped, ", ")), zap.String("because", f.refusal))
	}
	if f.marks != nil {
		s.learnMarks(f.marks.all())
	}
}

// learnMarks raises the marks to those that an earlier life left.
func (s *State) learnMarks(marks map[string]int64) {
	for name, ms := range marks {
		sv := s.known(name)
		sv.mark.Store(max(sv.Mark(), ms))
	}
}
