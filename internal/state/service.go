package state

import (
	"fmt"
	"sync/atomic"
)

// Service is the state of one service. Its methods may be called concurrently, except
// RaiseMark.
type Service struct {
	state *State
	name  string
	mark  atomic.Int64                 // every ID so far has an earlier timestamp
	word  atomic.Pointer[atomic.Int64] // the mark's place in the mapping; nil once closed
}

// Name is the name of the service.
func (sv *Service) Name() string { return sv.name }

// Load returns the last save, without the leases that were not adopted.
func (sv *Service) Load() Saved {
	sv.state.mu.Lock()
	defer sv.state.mu.Unlock()
	return sv.state.saved[sv.name].clone()
}

// Save replaces the state of the service. When it returns nil, the next start after a
// kill -9 finds the new leases or, without a live directory, none. The timeline
// reaches the disk about a second later. Save waits for no disk.
//
// After a *FileError this process uses the new content, and a crash may bring the old
// leases back: release none. After an error about the content, and after ErrClosed,
// nothing has changed.
//
// Without a live directory a change of the timeline waits for the disk.
func (sv *Service) Save(content Saved) error { return sv.save(content, false) }

// SaveAfterLoss is Save without leases that belong to another daemon now. Even if it fails,
// a crash does not bring them back: it brings no lease back then.
func (sv *Service) SaveAfterLoss(content Saved) error { return sv.save(content, true) }

func (sv *Service) save(content Saved, loss bool) error {
	if err := content.validate(); err != nil {
		return fmt.Errorf("state of service %q: %w", sv.name, err)
	}
	return sv.state.save(sv.name, content.clone(), loss)
}

// Mark is a timestamp in Unix milliseconds above every ID's so far; 0 if there never was an ID.
func (sv *Service) Mark() int64 { return sv.mark.Load() }

// RaiseMark raises the mark to ms, unless it is there already. Before an ID with
// timestamp t is issued, RaiseMark(t+1) must be called. It takes no lock, allocates
// nothing and makes no system call. Calls for one service must not be concurrent.
//
// After Close it panics: an ID would lack its mark.
func (sv *Service) RaiseMark(ms int64) {
	if ms <= sv.mark.Load() {
		return
	}
	sv.mark.Store(ms)
	word := sv.word.Load()
	if word == nil {
		panic("state: RaiseMark of service " + sv.name + " after Close: an ID would lack its mark")
	}
	word.Store(ms)
}
