package state

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// ErrClosed is returned by methods after Close.
var ErrClosed = errors.New("the state is closed")

// Options of Open. The zero value means no live directory and no log.
type Options struct {
	// Live is the live directory, on a file system in memory. Without one ("")
	// nothing is adopted after a crash, and the marks are in the state directory.
	Live string
	// Identity replaces the reading of this host's machine and boot ID.
	Identity func() Identity
	Log      *zap.Logger // nil: nothing is logged
	// OnError is called for each failure that is logged as an error; optional.
	OnError func()
}

func (o Options) identity() Identity {
	if o.Identity != nil {
		return o.Identity()
	}
	return hostIdentity()
}

func (o Options) withLog() Options {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

func (o Options) fail(message string, err error) {
	o.Log.Error(message, zap.Error(err))
	if o.OnError != nil {
		o.OnError()
	}
}

// State is the local state of one daemon. Its methods may be called concurrently.
type State struct {
	opts Options

	// These are not changed after the start.
	disk   Dir    // nil: ephemeral
	base   Dir    // the live directory; nil: none
	place  string // the live directory, as the state file names it; "": none
	folder string // this state directory's name for itself
	owner  ownerRecord
	marks  *marks

	// mu guards the fields below, and the names of the marks. Nothing waits for a disk
	// while it is held, unless the marks are on one.
	mu       sync.Mutex
	live     *live               // nil: without a live directory
	services map[string]*Service // also those that this life does not use
	said     bool                // the log has that the live state cannot be written
	closed   bool
	began    time.Time // of the write to the disk that is under way; zero: none
	diskErr  error     // of the last one

	turn    chan struct{} // holds a token during a write to the disk, which may hang for ever
	written []byte        // the content on the disk; nil: not known
}

func newState(opts Options, disk, base Dir) *State {
	return &State{
		opts: opts.withLog(), disk: disk, base: base,
		services: map[string]*Service{}, turn: make(chan struct{}, 1),
	}
}

// Service returns the state of the named service, the same one each time, and creates
// it if it is new.
//
// Errors: an error that wraps ErrTooManyServices, an error about the name, *FileError, ErrClosed.
func (s *State) Service(name string) (*Service, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	sv := s.services[name]
	if sv == nil {
		sv = &Service{state: s, name: name}
	}
	if sv.word.Load() == nil {
		word, err := s.marks.add(name, sv.Mark())
		if err != nil {
			return nil, err
		}
		sv.word.Store(word)
		s.services[name] = sv
	}
	return sv, nil
}

// known returns the service as far as the state knows it; it makes a new one, without a mark.
func (s *State) known(name string) *Service {
	sv := s.services[name]
	if sv == nil {
		sv = &Service{state: s, name: name}
		s.services[name] = sv
	}
	return sv
}

// save replaces the state of a service. It keeps the change even if the write fails: a
// removed lease must not come back with the next successful write.
func (s *State) save(sv *Service, content Saved, loss bool) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	// After a kill -9 the old timeline would make smaller IDs. The live state survives
	// that; without one, wait for the disk.
	waits := s.live == nil && s.disk != nil && !sameTimeline(sv.saved, content)
	sv.saved = content
	var err error
	if s.live != nil {
		err = s.saveLive(loss)
	}
	s.mu.Unlock()
	if waits {
		err = s.Sync()
	}
	return err
}

func (s *State) saveLive(loss bool) error {
	saved := map[string]Saved{}
	for name, sv := range s.services {
		saved[name] = sv.saved
	}
	err := s.live.save(saved, s.marks, loss)
	s.tellOfLive(err)
	return err
}

// Close writes the floors to the disk and unlocks the directories. A disk that does not
// answer within closePatience is worth a warning alone: the marks make up for the floors.
// Generators must have stopped before: a later RaiseMark panics. Calling Close again does
// nothing.
func (s *State) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for _, sv := range s.services {
		sv.word.Store(nil)
	}
	s.mu.Unlock()
	if s.disk == nil {
		return nil
	}
	written := make(chan error, 1)
	go func() { written <- s.sync() }()
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	var err error
	select {
	case err = <-written:
		err = errors.Join(err, s.closeLive(), s.disk.Close())
	case <-patience.C:
		// The directory stays locked until the write under way, or the process, has
		// ended.
		s.opts.Log.Warn("the disk does not answer: the stop does not wait for the floor; the mark in memory is ahead of it", zap.String("state_dir", s.disk.Path()))
		err = s.closeLive()
		go func() {
			<-written
			_ = s.disk.Close()
		}()
	}
	if err != nil {
		err = fmt.Errorf("closing the state directory %s: %w", s.disk.Path(), err)
	}
	return err
}

// closeLive closes everything but the state directory. Its lock is released last:
// until then no other process takes the folder.
func (s *State) closeLive() error {
	var errs []error
	if s.marks != nil {
		errs = append(errs, s.marks.m.Unmap())
	}
	if s.live != nil {
		errs = append(errs, s.live.dir.Close())
	}
	if s.base != nil {
		errs = append(errs, s.base.Close())
	}
	return errors.Join(errs...)
}

// Service is the state of one service. Its methods may be called concurrently, except
// RaiseMark.
type Service struct {
	state *State
	name  string
	mark  atomic.Int64                 // every ID so far has an earlier timestamp
	word  atomic.Pointer[atomic.Int64] // the mark's place in the mapping; nil before this life uses it, and once closed
	saved Saved                        // guarded by State.mu
}

// Load returns the last save, without the leases that were not adopted.
func (sv *Service) Load() Saved {
	sv.state.mu.Lock()
	defer sv.state.mu.Unlock()
	return sv.saved.clone()
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
	return sv.state.save(sv, content.clone(), loss)
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
