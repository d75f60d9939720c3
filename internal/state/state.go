package state

import (
	"errors"
	"fmt"
	"maps"
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
	disk Dir // nil: ephemeral
	base Dir // the live directory; nil: none. Guarded by mu

	faulted atomic.Bool // a mark could not be stored: its file was cut short

	owner   ownerRecord   // is not changed after the start
	changes chan struct{} // has a token when the disk lacks more than new marks

	// mu guards the fields below. Nothing waits for a disk while it is held, unless
	// the marks are on one.
	mu       sync.Mutex
	place    string // the live directory, as the state file names it; "": none
	folder   string // this state directory's name for itself
	live     *live  // nil: without a live directory
	lost     error  // why the live state cannot go on in a new folder; nil: it need not, or it has
	marks    *marks
	former   []*Mapping // marks that were lost: a call of RaiseMark may be about to store there
	saved    map[string]Saved
	floors   map[string]int64 // of services that this life does not use
	services map[string]*Service
	dropped  map[string]int // leases that were not adopted
	said     reported       // of the live state
	closed   bool

	syncer syncer
}

// Service returns the state of the named service, the same one each time, and creates
// it if it is new.
//
// Errors: one that wraps ErrTooManyServices, one about the name, *FileError, ErrClosed.
func (s *State) Service(name string) (*Service, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if sv := s.services[name]; sv != nil {
		return sv, nil
	}
	word, err := s.marks.add(name, s.floors[name])
	if err != nil {
		return nil, err
	}
	sv := &Service{state: s, name: name}
	sv.mark.Store(s.floors[name])
	sv.word.Store(word)
	if _, known := s.saved[name]; !known {
		s.saved[name] = Saved{}
	}
	s.services[name] = sv
	delete(s.floors, name)
	return sv, nil
}

// save replaces the state of a service.
func (s *State) save(name string, content Saved) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	// After a kill -9 the old timeline would make smaller IDs. The live state survives
	// that; without one, wait for the disk.
	waits := s.live == nil && s.disk != nil && !sameTimeline(s.saved[name], content)
	err := s.saveLocked(map[string]Saved{name: content})
	s.mu.Unlock()
	if err == nil && waits {
		err = s.Sync()
	}
	return err
}

// saveLocked keeps the changes even if the write fails: a removed lease must not come
// back with the next successful write.
func (s *State) saveLocked(changes map[string]Saved) (err error) {
	maps.Copy(s.saved, changes)
	if s.live != nil {
		err = s.live.write(s.saved, s.marks)
	}
	s.wake()
	return err
}

// wake makes Run write the state to the disk soon.
func (s *State) wake() {
	select {
	case s.changes <- struct{}{}:
	default: // there is a token already
	}
}

// Close writes the floors to the disk, waiting for at most closePatience, and unlocks
// the directories. Generators must have stopped before: a later RaiseMark panics.
// Calling Close again does nothing.
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
		err = errors.Join(errDiskStalls, s.closeLive())
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
	for _, m := range s.former {
		errs = append(errs, m.Unmap())
	}
	if s.live != nil {
		errs = append(errs, s.live.dir.Close())
	}
	if s.base != nil {
		errs = append(errs, s.base.Close())
	}
	return errors.Join(errs...)
}
