package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"
)

const (
	stateName = "state"

	stateRemedy = "put the right file back, or move it away: the daemon then starts under a new identity, without its leases, and takes the timeline from the next one"
)

var stateKind = kind{"kazahana-state", 1}

// stateFile survives a power failure. It holds nothing that makes an ID, so a
// restored copy cannot repeat one.
type stateFile struct {
	// Folder is the name of this state directory's folder in the live directory.
	Folder string `json:"identity"`
	// Live is the live directory of the last daemon, for commands that read it.
	Live     string              `json:"liveDir,omitempty"`
	Owner    ownerRecord         `json:"lockOwner"`
	Services map[string]document `json:"services"`
}

// document is one service in the state file. Its leases are in the live directory.
type document struct {
	FloorMS int64 `json:"floorMs,omitempty"`
	Saved
}

// readState reads the state file; content is nil where there is none.
func readState(d Dir) (f stateFile, content []byte, err error) {
	content, err = d.Read(stateName)
	if errors.Is(err, fs.ErrNotExist) {
		return stateFile{Services: map[string]document{}}, nil, nil
	}
	if err != nil {
		return f, nil, err
	}
	path := joinPath(d, stateName)
	if err := unseal(path, stateKind, stateRemedy, content, &f); err != nil {
		return f, nil, err
	}
	if err := f.validate(); err != nil {
		return f, nil, &FileError{Path: path, Problem: "is damaged", Err: err, Remedy: stateRemedy}
	}
	return f, content, nil
}

func (f stateFile) validate() error {
	if !isFolderName(f.Folder) {
		return fmt.Errorf("the identity %q is not %d hex digits", f.Folder, folderNameLen)
	}
	for name, doc := range f.Services {
		if err := doc.validate(); err != nil {
			return fmt.Errorf("service %q: %w", name, err)
		}
		if doc.leases() > 0 {
			return fmt.Errorf("service %q: it has a lease, which belongs in the live directory", name)
		}
		if doc.FloorMS < 0 || doc.FloorMS > maxMark {
			return fmt.Errorf("service %q: a floor of %d ms is not a valid time", name, doc.FloorMS)
		}
	}
	return nil
}

const (
	// syncInterval is how far the floors on the disk may be behind the marks.
	syncInterval = time.Second
	// stallAfter is how long a write may take before the disk counts as stalled.
	stallAfter = 5 * time.Second
	// closePatience is how long a stop waits for the disk.
	closePatience = time.Second
	// failureLogged is how often the log repeats a failure that lasts.
	failureLogged = time.Minute
)

// Sync writes the floors and timelines to the disk if they have changed, and waits for
// the write.
func (s *State) Sync() error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return ErrClosed
	}
	return s.sync()
}

func (s *State) sync() error {
	if s.disk == nil {
		return nil
	}
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.mu.Lock()
	s.began = time.Now()
	s.mu.Unlock()
	err := s.writeState()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.diskErr = time.Time{}, err
	return err
}

func (s *State) writeState() error {
	content, err := seal(stateKind, s.snapshot())
	if err != nil {
		return err
	}
	if string(content) != string(s.written) {
		if err := s.disk.Replace(stateName, content); err != nil {
			return err
		}
		s.written = content
	}
	return s.disk.Current()
}

var errDiskStalls = errors.New("the disk does not answer")

// snapshot is the content that the disk should have.
func (s *State) snapshot() stateFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	file := stateFile{Folder: s.folder, Live: s.place, Owner: s.owner, Services: map[string]document{}}
	for name, sv := range s.services {
		file.Services[name] = document{FloorMS: sv.Mark(), Saved: sv.saved.withoutLeases()}
	}
	return file
}

// Run keeps the disk about a second behind the memory, until ctx is done; then it returns
// nil. Errors do not stop it: a full, failing or frozen disk does not stop IDs.
func (s *State) Run(ctx context.Context) error {
	ticker := time.NewTicker(syncInterval)
	defer ticker.Stop()
	written := make(chan error, 1)
	writing := false
	var said time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-written:
			writing = false
			s.tellOfDisk(&said, err)
		case <-ticker.C:
			if !writing {
				writing = true
				go func() { written <- s.Sync() }()
			} else if s.Health().Stalled > stallAfter {
				s.tellOfDisk(&said, errDiskStalls)
			}
		}
	}
}

// tellOfDisk logs that the disk is behind, each minute, and when that is over. said is when the
// log had it last; zero: it is not behind.
func (s *State) tellOfDisk(said *time.Time, err error) {
	switch {
	case err != nil && time.Since(*said) >= failureLogged:
		s.opts.fail("the floor cannot be brought to the disk of the state directory "+s.disk.Path()+
			"; IDs go on, and kill -9 loses nothing: only a power failure would", err)
		*said = time.Now()
	case err == nil && !said.IsZero():
		s.opts.Log.Info("the state directory is up to date again", zap.String("state_dir", s.disk.Path()))
		*said = time.Time{}
	}
}

// Health is the condition of the state, for status and doctor.
type Health struct {
	Dir     string        // the state directory; "": none
	Live    string        // where the leases and marks are; "": in state_dir, or nowhere
	LiveErr error         // why they cannot be written; a crash would cost the leases
	Stalled time.Duration // how long the disk has kept a write waiting; 0: it has not
	Err     error         // why the last write to the disk failed
}

// Health may be called at any time.
func (s *State) Health() Health {
	h := Health{}
	if s.disk != nil {
		h.Dir = s.disk.Path()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != nil {
		h.Live, h.LiveErr = s.live.dir.Path(), s.live.err
	}
	h.Err = s.diskErr
	if !s.began.IsZero() {
		h.Stalled = time.Since(s.began)
	}
	return h
}
