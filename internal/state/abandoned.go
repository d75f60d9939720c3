package state

import (
	"errors"
	"io/fs"
	"time"

	"go.uber.org/zap"
)

// abandonedAfter is how long a folder without a lock is kept after its daemon touched it, or
// saved there. A daemon that comes back later starts from the floors in its state directory.
const abandonedAfter = 24 * time.Hour

// Sweep removes the folders of dead daemons beside this one, and touches this one: a daemon
// that has saved nothing for days may be killed, and must find its marks again. Run calls it a
// second after the start, and each hour.
func (s *State) Sweep() {
	s.mu.Lock()
	live, closed := s.live, s.closed
	s.mu.Unlock()
	if live == nil || closed {
		return
	}
	if err := live.dir.Touch(); err != nil {
		s.opts.Log.Warn("the folder in the live directory cannot be touched; a day after its last save another daemon may take it for left over", zap.Error(err))
	}
	subs, err := s.base.Subs()
	if err != nil {
		s.opts.Log.Warn("the live directory cannot be searched for left-over folders", zap.Error(err))
		return
	}
	for _, sub := range subs {
		if !isFolderName(sub.Name) || sub.Name == s.folder || time.Since(sub.Changed) <= abandonedAfter {
			continue
		}
		switch removed, err := removeAbandoned(s.base, sub.Name); {
		case err != nil:
			s.opts.Log.Warn("a left-over folder of the live directory cannot be removed", zap.Error(err))
		case removed:
			s.opts.Log.Info("removed a folder of the live directory whose daemon is gone", zap.String("folder", joinPath(s.base, sub.Name)))
		}
	}
}

// removeAbandoned removes the folder under its lock.
func removeAbandoned(base Dir, name string) (bool, error) {
	dir, err := base.Sub(name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // another daemon was faster
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	if err := dir.Lock(""); errors.As(err, new(*LockedError)) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return true, base.RemoveSub(name)
}
