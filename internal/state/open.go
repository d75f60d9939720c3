package state

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/zap"
)

// Open locks the state directory, creates missing files, and decides whether leases of
// an earlier life are adopted. While a killed process still holds the directory, it
// waits, until ctx is done.
//
// Errors: *LockedError if another process has the directory, *FileError about a file
// or a directory.
func Open(ctx context.Context, dir string, opts Options) (*State, error) {
	opts = opts.withLog()
	disk, err := openStateDir(dir, true, opts.Log)
	if err != nil {
		return nil, err
	}
	var live Dir
	if opts.Live != "" {
		if live, err = openLiveDir(opts.Live, disk); err != nil {
			return nil, errors.Join(err, disk.Close())
		}
	}
	return OpenOn(ctx, disk, live, opts)
}

// OpenOn is Open on directories of any kind, which it closes. live is nil
// without a live directory; opts.Live is not read.
func OpenOn(ctx context.Context, disk, live Dir, opts Options) (*State, error) {
	return openOn(ctx, disk, live, opts, false)
}

// openOn is OpenOn; blind says that the live directory cannot be seen from here.
func openOn(ctx context.Context, disk, live Dir, opts Options, blind bool) (_ *State, err error) {
	opts = opts.withLog()
	s := &State{
		opts: opts, disk: disk, base: live, changes: make(chan struct{}, 1),
		saved: map[string]Saved{}, floors: map[string]int64{}, services: map[string]*Service{}, dropped: map[string]int{},
	}
	s.syncer.turn = make(chan struct{}, 1)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeLive(), disk.Close())
		}
	}()
	if err := lockPatiently(ctx, disk, opts.Log); err != nil {
		return nil, err
	}
	var file stateFile
	err = tellIfSlow(opts.Log, disk.Path(), func() (err error) {
		file, s.syncer.written, s.syncer.id, err = readState(disk)
		return err
	})
	if err != nil {
		return nil, err
	}
	for name, doc := range file.Services {
		s.floors[name] = doc.FloorMS
		s.saved[name], _ = doc.saved() // readState has checked it
	}
	known := s.syncer.written != nil
	s.choosePlace(file, known, blind)
	if err := s.openMarks(ctx, known, blind); err != nil {
		return nil, err
	}
	s.chooseOwner(file)
	for name, saved := range s.saved {
		s.saved[name] = saved.Settled(s.floors[name])
	}
	// A daemon that has run here before can start without writing to the disk.
	if err := tellIfSlow(opts.Log, disk.Path(), s.sync); err != nil && !known {
		return nil, err
	} else if err != nil {
		opts.fail("the state directory cannot be written; IDs go on, and kill -9 loses nothing: only a power failure would", err)
	}
	return s, nil
}

// Ephemeral is a state that lives in memory only (state_dir: none).
func Ephemeral(opts Options) *State {
	opts = opts.withLog()
	opts.Log.Warn("without a state directory nothing survives a restart: leases are acquired anew, so that while the provider is unreachable " +
		"there are only random fallback IDs or none; that IDs go on ascending rests on the clock alone; a changed epoch goes unnoticed; locks that are held across a restart are lost")
	return &State{
		opts: opts, owner: ownerRecord{Name: newOwner()}, marks: memoryMarks(), changes: make(chan struct{}, 1),
		saved: map[string]Saved{}, floors: map[string]int64{}, services: map[string]*Service{},
	}
}

// choosePlace decides on the identity, which belongs to one live directory. If an
// operator changes live_dir and later goes back, the leases in the old directory are
// out of date and must not be adopted. The marks there still count.
func (s *State) choosePlace(file stateFile, known, blind bool) {
	s.folder, s.place = file.Folder, file.Live
	if !blind {
		if s.place = ""; s.base != nil {
			s.place = s.base.Path()
		}
	}
	switch {
	case !known:
		s.folder = newFolderName()
	case blind || !samePlace(file.Live, s.base):
		s.opts.Log.Info("the leases and marks are kept in another place than before; leases of the last run are not adopted",
			zap.String("before", file.Live), zap.String("now", s.place))
		s.folder = newFolderName()
		s.learnFormer(file)
	}
}

// learnFormer raises the floors to the marks that the last life left in another place,
// if they can be read.
func (s *State) learnFormer(file stateFile) {
	dir := s.disk
	if _, real := s.disk.(*osDir); file.Live != "" {
		if !real {
			return
		}
		former, err := openDir(filepath.Join(file.Live, file.Folder), false, "")
		if err != nil {
			return
		}
		defer former.Close()
		dir = former
	}
	s.learnFloors(readMarks(dir))
}

// openMarks opens the live state, or the marks alone without a live directory.
func (s *State) openMarks(ctx context.Context, known, blind bool) error {
	if blind {
		s.marks = memoryMarks()
		return nil
	}
	if s.base == nil {
		s.opts.Log.Warn("there is no directory in memory (live_dir): after a crash no lease is adopted, and a frozen disk stops the IDs",
			zap.String("state_dir", s.disk.Path()))
		return s.openMarksOnDisk()
	}
	l, err := s.openFolder(ctx, s.folder)
	if locked, ok := errors.AsType[*LockedError](err); ok {
		s.opts.Log.Warn("this state directory is a copy of one that a running daemon uses; it begins under a new identity, without leases",
			zap.String("state_dir", s.disk.Path()), zap.Stringer("daemon", locked.Holder), zap.String("live", locked.Path))
		s.folder = newFolderName()
		l, err = s.openFolder(ctx, s.folder)
	}
	if err != nil {
		return err
	}
	s.live = l
	return s.takeOver(l.look(true), known)
}

// openFolder opens and locks a folder of the live directory. If another daemon removes
// it at that moment as abandoned, it is made again.
func (s *State) openFolder(ctx context.Context, folder string) (*live, error) {
	for {
		dir, err := s.base.Sub(folder, true)
		removed := isMissing(err)
		if err == nil {
			err = lockPatiently(ctx, dir, s.opts.Log)
			if removed = dir.Current() != nil; err == nil && !removed {
				return &live{dir: dir, folder: folder, identity: s.opts.identity()}, nil
			}
			err = errors.Join(err, dir.Close())
		}
		if !removed || ctx.Err() != nil {
			return nil, err
		}
		if err := s.base.Current(); err != nil {
			return nil, err // the live directory itself cannot be used
		}
	}
}

// takeOver goes on from the files of an earlier life in the folder.
func (s *State) takeOver(f found, known bool) (err error) {
	s.marks = f.marks
	switch {
	case f.damage != nil:
		s.opts.fail("the live state is damaged: no lease is adopted, and IDs go on above the floor in the state directory, which may be a second behind", f.damage)
	case f.fresh && known:
		s.opts.Log.Info("there is no live state of an earlier run: it was the first, or the machine has booted since", zap.String("live", s.live.dir.Path()))
	}
	for name, saved := range f.saved {
		switch n := saved.leases(); {
		case f.refusal == "":
			s.saved[name] = saved
		case n > 0:
			s.dropped[name] = n
		}
	}
	if len(s.dropped) > 0 {
		s.opts.Log.Warn("leases of an earlier run are not adopted; their slots come free after the quarantine",
			zap.String("services", strings.Join(slices.Sorted(maps.Keys(s.dropped)), ", ")), zap.String("because", f.refusal))
	}
	if s.marks == nil {
		if s.marks, err = createMarks(s.live.dir); err != nil {
			return err
		}
	}
	s.learnFloors(f.read) // they may have been overwritten since
	s.learnFloors(s.marks.all())
	if f.latest && f.refusal != "" {
		s.learnTimelines(f.saved)
	}
	for name := range s.marks.names {
		if _, err := s.marks.add(name, s.floors[name]); err != nil {
			return err
		}
	}
	id, err := s.live.dir.Identify(marksName)
	if err != nil {
		return err
	}
	if before := s.marks.m.ID; id.Inode == before.Inode && id.Device == before.Device {
		s.marks.m.ID = id
	} // Else they were replaced just now: Look finds that out, and no leases file names the new ones.
	s.tellOfLive(s.live.write(s.saved, s.marks)) // Look repeats a failed write
	return nil
}

// learnTimelines takes over the timelines of a leases file whose leases are not adopted. The
// state directory may have an earlier one, if its disk was full. Which of two is the later
// one shows in the IDs: a service moves only to greater ones.
func (s *State) learnTimelines(saved map[string]Saved) {
	for name, live := range saved {
		live = live.withoutLeases().Settled(s.floors[name])
		disk := s.saved[name]
		if disk.Source == SourceNone || CrossTimelines(disk.Timeline, live.Timeline, s.floors[name]).Ascends() {
			s.saved[name] = live
		}
	}
}

// learnFloors raises the floors to the marks.
func (s *State) learnFloors(marks map[string]int64) {
	for name, ms := range marks {
		s.floors[name] = max(s.floors[name], ms)
	}
}

// openMarksOnDisk opens the marks of the state directory. Damaged ones are made anew:
// no lease depends on them, and the floors remain.
func (s *State) openMarksOnDisk() (err error) {
	s.marks, err = openMarks(s.disk, true)
	if err == nil {
		s.learnFloors(s.marks.all())
		return nil
	}
	if !isMissing(err) {
		s.opts.fail("the marks are damaged: IDs go on above the floor in the state file, which may be a second behind", err)
	}
	s.marks, err = createMarks(s.disk)
	return err
}
