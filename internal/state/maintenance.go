package state

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Floor is the effect of ResetFloor on one service.
type Floor struct {
	Service string
	Before  int64 // the mark, in Unix ms; 0 also where it was lost
	After   int64
}

// openForChange opens a directory that a daemon has used, for an operator's change; a
// mistyped name must not make a new one. The change is made under a new identity: so no
// lease from before is adopted, also where the live directory cannot be seen from here
// (it is gone after a boot, and invisible from outside a container).
func openForChange(path string, opts Options) (_ *State, err error) {
	disk, _, err := openUsed(path, &opts)
	if err != nil {
		return nil, err
	}
	s := newState(opts, disk, nil)
	defer func() {
		if err != nil {
			err = errors.Join(err, disk.Close())
		}
	}()
	file, _, err := s.begin()
	if err != nil {
		return nil, err
	}
	s.place, s.folder, s.marks = file.Live, newFolderName(), memoryMarks()
	var last Report
	saved, marks := last.look(opts, file, disk)
	for name, content := range saved {
		if last.Refusal == "" {
			s.known(name).saved = content.withoutLeases()
		}
	}
	s.learnMarks(marks)
	s.settle(file)
	if last.free {
		s.owner = file.Owner // no copy of this directory has it
	}
	return s, nil
}

// changeServices has edit change the mark and the content of the service, or of all services if service
// is empty, under the lock. One write of the state file does it, which changes the identity, and
// so drops the leases of all services.
func changeServices(dir, service string, opts Options, edit func(*ServiceReport) error) (err error) {
	s, err := openForChange(dir, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.disk.Close()) }()
	names := slices.Sorted(maps.Keys(s.services))
	if service != "" {
		if !slices.Contains(names, service) {
			return fmt.Errorf("the state holds no service %q; it holds: %s", service, strings.Join(names, ", "))
		}
		names = []string{service}
	}
	for _, name := range names {
		sv := s.services[name]
		r := ServiceReport{Name: name, Mark: sv.Mark(), Saved: sv.saved}
		if err := edit(&r); err != nil {
			return err
		}
		sv.mark.Store(r.Mark)
		sv.saved = r.Saved
	}
	if err := s.sync(); err != nil || s.place != "" {
		return err
	}
	// The marks are in the state directory, where the next start finds them.
	m, err := createMarks(s.disk, nil)
	if err != nil {
		return err
	}
	return m.m.Unmap()
}

// openUsed opens a state directory that a daemon has used, and reads its file. The
// options get the last daemon's live directory where they name none.
func openUsed(path string, opts *Options) (*osDir, stateFile, error) {
	disk, err := openStateDir(path, false, os.Geteuid())
	if err != nil {
		return nil, stateFile{}, err
	}
	file, content, err := readState(disk)
	if err == nil && content == nil {
		err = &FileError{Path: disk.path, Problem: "holds no state of a daemon", Remedy: "check state_dir"}
	}
	if err != nil {
		return nil, file, errors.Join(err, disk.Close())
	}
	if opts.Live == "" {
		opts.Live = file.Live
	}
	return disk, file, nil
}

// ResetFloor lowers the mark of the service, or of all services if service is empty,
// to nowMS. A lower mark stays. Later IDs are made under new grants and are therefore unique,
// but may be smaller than the IDs that were dated ahead.
//
// Errors: *LockedError while a daemon runs, *FileError.
func ResetFloor(dir, service string, nowMS int64, opts Options) (floors []Floor, err error) {
	if nowMS <= 0 {
		return nil, fmt.Errorf("a mark of %d ms is not a valid time", nowMS)
	}
	err = changeServices(dir, service, opts, func(r *ServiceReport) error {
		floors = append(floors, Floor{Service: r.Name, Before: r.Mark, After: min(r.Mark, nowMS)})
		r.Saved.Largest, r.Mark = r.Saved.largest(r.Mark), min(r.Mark, nowMS)
		return nil
	})
	return floors, err
}

// AcceptTimeline puts the service on another timeline, by decision of an operator. It
// drops all leases, and the offer. The new timeline counts as set by a lease, so that a
// lease of yet another one is refused.
//
// decide is called with the service's report, under the lock, so that the values which
// it compares (see ServiceReport.Crossing) cannot change. It returns the timeline to use, or an
// error that AcceptTimeline passes on.
//
// Further errors: *LockedError while a daemon runs, *FileError.
func AcceptTimeline(dir, service string, opts Options, decide func(ServiceReport) (snowflake.Timeline, error)) error {
	return changeServices(dir, service, opts, func(r *ServiceReport) error {
		timeline, err := decide(*r)
		if err == nil {
			r.Saved = Saved{Timeline: timeline, Source: SourceLease, Largest: r.Saved.largest(r.Mark)}
		}
		return err
	})
}

// Crossing compares the IDs made before a change of the timeline with the IDs that can be made
// after it.
type Crossing struct {
	HasOld      bool         // old IDs may exist
	LargestOld  snowflake.ID // the largest possible old ID
	HasNew      bool         // the new timeline can represent times after the mark
	SmallestNew snowflake.ID // the smallest possible new ID
}

// Ascends reports whether every new ID is greater than every old one, so that
// the change repeats none.
func (c Crossing) Ascends() bool { return c.HasNew && (!c.HasOld || c.SmallestNew > c.LargestOld) }

// largest is the largest ID that can have been made before the mark, and before an operator
// changed it or the timeline.
func (s Saved) largest(markMS int64) snowflake.ID {
	if s.Source == SourceNone {
		return s.Largest // it never made an ID
	}
	return max(s.Largest, CrossTimelines(s.Timeline, s.Timeline, markMS).LargestOld)
}

// Crossing is the Crossing from the service's timeline to next.
func (r ServiceReport) Crossing(next snowflake.Timeline) Crossing {
	c := CrossTimelines(r.Saved.Timeline, next, r.Mark)
	c.LargestOld = max(c.LargestOld, r.Saved.Largest)
	c.HasOld = c.LargestOld > 0
	return c
}

// CrossTimelines computes the Crossing from old to next of a service with that mark.
// Every earlier timestamp is below the mark, and no later one is, under any clock, unless
// an operator has lowered the mark.
func CrossTimelines(old, next snowflake.Timeline, markMS int64) Crossing {
	var c Crossing
	if last := min(markMS, old.EndMS()) - 1; markMS > 0 && old.Contains(last) {
		c.HasOld, c.LargestOld = true, old.ID(last, old.MaxLow())
	}
	if first := max(markMS, next.EpochMS); next.Contains(first) {
		c.HasNew, c.SmallestNew = true, next.ID(first, 0)
	}
	return c
}
