package state

import (
	"fmt"
	"sync/atomic"
)

// Service is the state of one service. Its methods may be called concurrently,
// but for RaiseMark.
type Service struct {
	state *State
	name  string
	mark  atomic.Int64                 // every ID so far embeds less
	word  atomic.Pointer[atomic.Int64] // the mark's place in the mapping; nil once closed
}

// Name is the name of the service.
func (sv *Service) Name() string { return sv.name }

// Load returns what was saved last, without the leases that were not adopted.
func (sv *Service) Load() Saved {
	sv.state.mu.Lock()
	defer sv.state.mu.Unlock()
	return sv.state.saved[sv.name].clone()
}

// Save replaces all that is kept for the service. When it returns nil, a kill -9
// brings back the new leases or, where there is no live directory, none. The
// timeline reaches the disk about a second later. Save waits for no disk.
//
// On a *FileError the new content stands for this process, and nothing is adopted
// after a crash until it is written: Look tries again. So a lease that was removed
// never comes back. On an error about the content, and on ErrClosed, nothing has
// changed.
//
// Without a live directory a change of the timeline waits for the disk.
func (sv *Service) Save(content Saved) error {
	if err := content.validate(); err != nil {
		return fmt.Errorf("state of service %q: %w", sv.name, err)
	}
	return sv.state.save(sv.name, content.clone())
}

// Mark is the timestamp in Unix milliseconds that no ID so far reaches; 0 if
// there never was an ID.
func (sv *Service) Mark() int64 { return sv.mark.Load() }

// RaiseMark raises the mark to ms, or does nothing where it is there already. To
// emit an ID that embeds t, call RaiseMark(t+1) first. It takes no lock, allocates
// nothing and makes no system call. Calls for one service come one at a time.
//
// After Close it panics: an ID would lack its mark.
func (sv *Service) RaiseMark(ms int64) {
	if ms <= sv.mark.Load() {
		return
	}
	// begin stores the word's place first, then reads the mark. So either this call
	// finds the new place, or begin finds the new mark.
	sv.mark.Store(ms)
	word := sv.word.Load()
	if word == nil {
		panic("state: RaiseMark of service " + sv.name + " after Close: an ID would lack its mark")
	}
	if !storeWord(word, encodeMark(ms)) {
		sv.state.faulted.Store(true) // Look gives the marks another file
	}
}
