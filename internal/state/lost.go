package state

import (
	"context"
	"errors"
	"sync/atomic"

	"go.uber.org/zap"
)

// Look checks that the live files still are those that this process writes. If not,
// it writes them anew under a new identity, because another daemon may have begun to
// use the old one. It also repeats a failed write. Run calls it about once a second.
func (s *State) Look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return
	case s.live == nil:
		s.leaveMarks()
		return
	}
	if s.live.err != nil {
		_ = s.live.write(s.saved, s.marks)
	}
	err := s.live.changed(s.marks)
	if s.faulted.Load() && err == nil {
		err = cutShort(s.marks)
	}
	if err != nil && s.onlyTouched() {
		err = nil
	}
	if err != nil {
		if s.lost == nil {
			s.opts.fail("the live state was lost; it is written anew under a new identity", err)
		}
		s.lost = s.begin()
		s.tellOfLive(s.lost)
		return
	}
	s.lost = nil // what was away is back
	s.tellOfLive(s.live.err)
}

func (s *State) tellOfLive(err error) {
	switch failed, over := s.said.news("live", err); {
	case failed:
		s.opts.fail("the live state cannot be written; IDs go on, and after a crash no lease is adopted", err)
	case over:
		s.opts.Log.Info("the live state is up to date again", zap.String("live", s.live.dir.Path()))
	}
}

func cutShort(m *marks) error {
	return damagedMarks(m.path, "it was cut short while this process uses it")
}

// leaveMarks goes on without marks on the disk after they were cut short. The floors
// in the state file still follow.
func (s *State) leaveMarks() {
	if !s.faulted.Swap(false) {
		return
	}
	s.opts.fail("the marks were lost; IDs go on, and until the next start the floor in the state file takes their place", cutShort(s.marks))
	m := memoryMarks()
	for name, sv := range s.services {
		word, err := m.add(name, sv.mark.Load())
		if err != nil {
			continue // cannot happen: the table has room for all services of the other
		}
		sv.word.Store(word)
	}
	s.former = append(s.former, s.marks.m)
	s.marks = m
}

// onlyTouched reports whether only the ctime of the files has changed, and accepts
// that. It happens with chmod, or when the kernel reads a page of the marks back from
// swap.
func (s *State) onlyTouched() bool {
	id, err := s.live.dir.Identify(marksName)
	if err != nil || s.faulted.Load() || id.Inode != s.marks.m.ID.Inode || id.Device != s.marks.m.ID.Device {
		return false
	}
	for name, sv := range s.services {
		least := sv.mark.Load() // before the word: the mark may rise between the two
		if ms, ok := s.marks.get(name); !ok || ms < least {
			return false
		}
	}
	for name := range s.marks.names {
		if ms, ok := s.marks.get(name); !ok || ms < s.floors[name] {
			return false
		}
	}
	if s.live.dir.Current() != nil || !s.marks.intact(s.live.expect) || !s.live.leasesIntact() {
		return false
	}
	// A write between the two readings would go unnoticed.
	if again, err := s.live.dir.Identify(marksName); err != nil || again != id {
		return false
	}
	s.marks.m.ID = id
	_ = s.live.write(s.saved, s.marks) // Look repeats a failed write
	return true
}

// begin gives the live state a new folder under a new identity.
func (s *State) begin() error {
	if base, real := s.base.(*osDir); real && base.Current() != nil {
		present, err := openLiveDir(base.path, s.disk)
		if err != nil {
			return err
		}
		_ = base.Close() // only read from
		s.base = present
	}
	folder := newFolderName()
	var next replacement
	if err := s.fill(&next, folder); err != nil {
		return errors.Join(err, next.discard(), s.base.RemoveSub(folder))
	}
	// From here on nothing can fail, so all services use the same folder. First void the
	// old one, wherever it is now: its marks are about to fall behind.
	s.live.tell(s.marks, s.live.sequence|voidFlag)
	s.faulted.Store(false)
	for name, sv := range s.services {
		if !sv.moveTo(next.words[name]) {
			s.faulted.Store(true)
		}
	}
	old := s.live.dir
	s.former = append(s.former, s.marks.m)
	s.live, s.marks, s.folder, s.place = next.live, next.marks, folder, s.base.Path()
	if err := old.Close(); err != nil {
		s.opts.fail("the old folder of the live state cannot be closed", err)
	}
	s.opts.Log.Warn("the live state has a new folder", zap.String("live", s.live.dir.Path()))
	s.wake()
	return nil
}

// replacement is a folder that will take the place of the old one.
type replacement struct {
	live  *live
	marks *marks
	words map[string]*atomic.Int64 // the marks of the services in use
}

// fill makes a folder with the marks and leases of all services.
func (s *State) fill(r *replacement, folder string) (err error) {
	if r.live, err = s.openFolder(context.Background(), folder); err != nil {
		return err
	}
	if r.marks, err = createMarks(r.live.dir); err != nil {
		return err
	}
	r.words = map[string]*atomic.Int64{}
	for name, sv := range s.services {
		if r.words[name], err = r.marks.add(name, sv.mark.Load()); err != nil {
			return err
		}
	}
	for name, saved := range s.saved {
		if saved.leases() == 0 || s.services[name] != nil {
			continue
		}
		if _, err := r.marks.add(name, s.floors[name]); err != nil {
			return err
		}
	}
	if r.marks.m.ID, err = r.live.dir.Identify(marksName); err != nil {
		return err
	}
	return r.live.write(s.saved, r.marks)
}

func (r *replacement) discard() error {
	var errs []error
	if r.marks != nil {
		errs = append(errs, r.marks.m.Unmap())
	}
	if r.live != nil {
		errs = append(errs, r.live.dir.Close())
	}
	return errors.Join(errs...)
}
