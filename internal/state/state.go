package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// syncInterval is how much of the marks a power failure can cost.
const syncInterval = time.Second

// ErrClosed is returned by what is called after Close.
var ErrClosed = errors.New("the state is closed")

// Options of Open. The zero value is what a daemon wants.
type Options struct {
	// Identity replaces the reading of this host's machine and boot ID.
	Identity func() Identity
	// OnSyncError is called by Run, in its goroutine, each time the marks
	// cannot be brought to the disk. kill -9 is survived all the same.
	OnSyncError func(error)
}

func (o Options) identity() Identity {
	if o.Identity != nil {
		return o.Identity()
	}
	return hostIdentity()
}

// State is the durable state of one daemon. Its methods may be called
// concurrently.
type State struct {
	notes       []string
	onSyncError func(error)
	lock        *dirLock // nil: ephemeral
	marks       *marks
	dropped     map[string]int // leases that Open did not adopt

	// mu guards what follows, and is held during a write of state.db. It is
	// taken before marks.mu and Service.mu.
	mu       sync.Mutex
	db       *database // nil: ephemeral
	stored   map[string]Saved
	services map[string]*Service
	closed   bool
}

// Open takes the state directory for this process, makes what is missing, and
// decides whether leases saved before are adopted.
//
// Errors: *LockedError when another process has the directory, *FileError when
// a file or the directory is not in order.
func Open(dir string, opts Options) (*State, error) {
	return open(dir, opts, forDaemon)
}

// Ephemeral is a state that lives in memory only (state_dir: none). Its one
// note says what that costs.
func Ephemeral() *State {
	return &State{
		marks:    memoryMarks(),
		stored:   map[string]Saved{},
		services: map[string]*Service{},
		notes: []string{"without a state directory nothing survives a restart: leases are acquired anew, so that while the provider is unreachable " +
			"there are only random fallback IDs or none; that IDs go on ascending rests on the clock alone; a changed epoch goes unnoticed"},
	}
}

// purpose is what a state directory is opened for.
type purpose int

const (
	forDaemon purpose = iota // make what is missing
	forChange                // an operator's change to a directory that exists
	forReset                 // likewise, and marks may be missing or incomplete
)

func open(path string, opts Options, why purpose) (_ *State, err error) {
	dir, note, err := openDirectory(path, why == forDaemon)
	if err != nil {
		return nil, err
	}
	if why != forDaemon {
		if err := dir.mustHoldState(); err != nil {
			return nil, err
		}
	}
	lock, err := dir.lock(time.Now())
	if err != nil {
		return nil, err
	}
	s := &State{onSyncError: opts.OnSyncError, lock: lock, dropped: map[string]int{}, services: map[string]*Service{}}
	if note != "" {
		s.notes = append(s.notes, note)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeFiles())
		}
	}()
	for _, name := range []string{marksName, databaseName} {
		if err := dir.clean(name); err != nil {
			return nil, err
		}
	}
	if err := s.load(dir, opts.identity(), why); err != nil {
		return nil, err
	}
	return s, nil
}

// mustHoldState refuses a directory that no daemon has used: a typing error in
// its name shall not make a new one.
func (d directory) mustHoldState() error {
	for _, name := range []string{databaseName, marksName} {
		if exists, err := d.exists(name); exists || err != nil {
			return err
		}
	}
	return &FileError{Path: d.path, Problem: "holds no state of a daemon", Remedy: "check state_dir"}
}

// load opens both files, creating what may be created, and adopts or drops the
// leases.
func (s *State) load(dir directory, identity Identity, why purpose) error {
	haveMarks, err := dir.exists(marksName)
	if err != nil {
		return err
	}
	haveDatabase, err := dir.exists(databaseName)
	if err != nil {
		return err
	}
	if haveMarks {
		if s.marks, err = openMarks(dir, true); err != nil {
			return err
		}
	}
	if !haveDatabase {
		if err := s.startDatabase(dir, identity); err != nil {
			return err
		}
	}
	if s.db, err = openDatabase(dir, true); err != nil {
		return err
	}
	found, err := s.db.read()
	if err != nil {
		return err
	}
	s.stored = found.services
	if why != forReset {
		if err := checkMarks(dir, s.marks, found.services); err != nil {
			return err
		}
	}
	generation, err := s.adopt(found, bind(identity, s.db.id))
	if err != nil || haveMarks {
		return err
	}
	if err := createMarks(dir, generation); err != nil {
		return err
	}
	s.marks, err = openMarks(dir, true)
	return err
}

// startDatabase creates a state.db where there is none. Marks that are there
// stay in force.
func (s *State) startDatabase(dir directory, identity Identity) error {
	// SQLite would replay a log that lost its database into the new one.
	for _, suffix := range []string{"-wal", "-journal"} {
		if stray, err := dir.exists(databaseName + suffix); err != nil {
			return err
		} else if stray {
			return &FileError{Path: dir.file(databaseName + suffix), Problem: "belongs to a " + databaseName + " that is not there",
				Remedy: "put that file back, or move this one away too"}
		}
	}
	generation := uint64(0)
	if s.marks != nil {
		generation = s.marks.generation()
		if len(s.marks.names) > 0 {
			s.notes = append(s.notes, dir.file(databaseName)+" is missing: a new one was made; IDs stay above the marks, "+
				"but leases held before are unknown, and so is the epoch in use: check that it has not changed")
		}
	}
	return createDatabase(dir, identity, generation)
}

// checkMarks makes sure that every service has its mark: without it the floor
// would be lost silently.
func checkMarks(dir directory, m *marks, services map[string]Saved) error {
	path := dir.file(marksName)
	if m == nil {
		if len(services) == 0 {
			return nil // new
		}
		return lostMarks(path, "is missing, though "+databaseName+" holds services; IDs made so far are unknown")
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if _, ok := m.get(name); !ok {
			return lostMarks(path, fmt.Sprintf("has no entry for service %q, which %s knows: it is not the file that belongs here", name, databaseName))
		}
	}
	return nil
}

// adopt decides whether the leases in found are this daemon's own, and drops
// them if not. It returns the generation that the marks must have.
func (s *State) adopt(found contents, present binding) (uint64, error) {
	refusal, generation := adoption(found, present, s.marks)
	if refusal == "" {
		if s.marks != nil {
			s.marks.setGeneration(generation)
		}
		return generation, nil
	}
	emptied := map[string]Saved{}
	for name, saved := range found.services {
		if n := saved.leases(); n > 0 {
			emptied[name], s.dropped[name] = saved.withoutLeases(), n
		}
	}
	if err := s.db.write(generation, emptied, &present); err != nil {
		return 0, err
	}
	if s.marks != nil {
		s.marks.setGeneration(generation)
	}
	maps.Copy(s.stored, emptied)
	if len(emptied) > 0 {
		names := strings.Join(slices.Sorted(maps.Keys(emptied)), ", ")
		s.notes = append(s.notes, fmt.Sprintf("the leases of %s are not adopted: %s; their slots come free after the quarantine", names, refusal))
	}
	return generation, nil
}

// adoption says why the leases in found must not be used, or "" if they may,
// and the generation from which to go on.
func adoption(found contents, present binding, m *marks) (refusal string, generation uint64) {
	refusal = found.binding.refusal(present)
	if m == nil {
		switch {
		case refusal != "":
		case len(found.services) > 0:
			refusal = "the marks are missing"
		default:
			return "", found.generation // new
		}
		return refusal, found.generation + 1
	}
	confirmed := m.generation()
	switch {
	case refusal != "":
	case found.generation < confirmed:
		refusal = databaseName + " is older than the marks (put back from a backup, without its -wal file, or its last write failed)"
	case found.generation > confirmed+1:
		refusal = "the marks are older than " + databaseName + " (put back from a backup?)"
	default:
		return "", found.generation
	}
	return refusal, max(found.generation, confirmed) + 1
}

// Notes are sentences for the log at start: what was not adopted and why, and
// what an operator should look at.
func (s *State) Notes() []string { return slices.Clone(s.notes) }

// Service returns the state of the service of that name, the same one each
// time, and makes it if it is new.
//
// Errors: one that wraps ErrTooManyServices, one about the name, *FileError,
// ErrClosed.
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
	mark, err := s.marks.add(name)
	if err != nil {
		return nil, err
	}
	// Only now the row: one without an entry in marks is taken for a loss.
	if _, known := s.stored[name]; !known {
		if err := s.replace(map[string]Saved{name: {}}); err != nil {
			return nil, err
		}
	}
	sv := &Service{state: s, name: name}
	sv.mark.Store(mark)
	s.services[name] = sv
	return sv, nil
}

// replace stores new content of services; s.mu is held.
func (s *State) replace(changes map[string]Saved) error {
	if s.closed {
		return ErrClosed
	}
	if s.db != nil {
		generation := s.marks.generation() + 1
		err := s.db.write(generation, changes, nil)
		if errors.Is(err, errDoubtful) {
			// Whatever a crash brings back, this makes it too old to adopt.
			s.marks.setGeneration(generation + 1)
		}
		if err != nil {
			return err
		}
		s.marks.setGeneration(generation)
	}
	maps.Copy(s.stored, changes)
	return nil
}

// Run brings changed marks to the disk about once a second, until ctx is done;
// then it returns nil. A failure is told to Options.OnSyncError and tried again:
// a full or failing disk does not stop IDs.
func (s *State) Run(ctx context.Context) error {
	ticker := time.NewTicker(syncInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := s.marks.sync(); err != nil && s.onSyncError != nil {
				s.onSyncError(err)
			}
		}
	}
}

// Close brings the marks to the disk and gives the directory back. Generators
// must have stopped before: a later RaiseMark panics. Calling Close again does
// nothing.
func (s *State) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	for _, sv := range s.services {
		sv.close()
	}
	return s.closeFiles()
}

// closeFiles gives up the lock last: until then nobody else touches the files.
func (s *State) closeFiles() error {
	var errs []error
	if s.marks != nil {
		errs = append(errs, s.marks.close())
	}
	if s.db != nil {
		errs = append(errs, s.db.close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.release())
	}
	return errors.Join(errs...)
}
