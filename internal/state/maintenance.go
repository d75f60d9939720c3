package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Floor is the effect of ResetFloor on one service.
type Floor struct {
	Service string
	Before  int64 // the mark, in Unix ms; 0 also where it was lost
	After   int64
	Leases  int // how many were dropped, the cached one included
}

// openForChange opens a directory that a daemon has used, for an operator's change; a
// mistyped name must not make a new one. If opts names no live directory, it uses the
// last daemon's. That one is gone after a boot, and invisible from outside a container.
// The change is then made without it and under a new identity, so that no lease which
// it should have dropped is adopted.
func openForChange(ctx context.Context, dir string, opts Options) (*State, error) {
	disk, file, err := openUsed(dir, &opts)
	if err != nil {
		return nil, err
	}
	if !InMemory(opts.Live) {
		return openOn(ctx, disk, nil, opts, file.Live != "")
	}
	live, err := openLiveDir(opts.Live, disk)
	if err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	// A directory of that name without the daemon's folder belongs to another
	// container, or was emptied by a reboot.
	folder, err := live.Sub(file.Folder, false)
	if errors.Is(err, fs.ErrNotExist) {
		return openOn(ctx, disk, nil, opts, true)
	}
	if err == nil {
		err = folder.Close()
	}
	if err != nil {
		return nil, errors.Join(err, live.Close(), disk.Close())
	}
	return OpenOn(ctx, disk, live, opts)
}

// openUsed opens a state directory that a daemon has used, and reads its file. The
// options get the last daemon's live directory where they name none.
func openUsed(path string, opts *Options) (*osDir, stateFile, error) {
	*opts = opts.withLog()
	disk, err := openStateDir(path, false, opts.Log)
	if err != nil {
		return nil, stateFile{}, err
	}
	file, content, _, err := readState(disk)
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
// to nowMS. A lower mark stays.
//
// The leases are dropped first: later IDs are made under new grants and are therefore
// unique, but may be smaller than those that were dated ahead. A crash in between
// leaves the old floor and no leases, which is safe.
//
// Errors: *LockedError while a daemon runs, *FileError.
func ResetFloor(ctx context.Context, dir, service string, nowMS int64, opts Options) (_ []Floor, err error) {
	if nowMS <= 0 {
		return nil, fmt.Errorf("a mark of %d ms is not a valid time", nowMS)
	}
	s, err := openForChange(ctx, dir, opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.resetFloor(service, nowMS, func() {})
}

// resetFloor calls between after the leases are dropped.
func (s *State) resetFloor(service string, nowMS int64, between func()) ([]Floor, error) {
	names, err := s.pick(service)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		saved := s.saved[name]
		saved.Largest = saved.largest(s.floors[name])
		s.saved[name] = saved
	}
	dropped, err := s.dropLeases(names)
	if err != nil {
		return nil, err
	}
	between()
	var floors []Floor
	for _, name := range names {
		before := s.floors[name]
		after := min(before, nowMS)
		s.floors[name] = after
		s.marks.lower(name, after)
		floors = append(floors, Floor{Service: name, Before: before, After: after, Leases: dropped[name]})
	}
	return floors, s.Sync()
}

// lower is the one way down for a mark; see ResetFloor.
func (m *marks) lower(name string, ms int64) {
	if i, known := m.names[name]; known {
		storeWord(m.slot(i, 0), encodeMark(ms))
	}
}

// pick returns the names of all services, or checks the one that is given.
func (s *State) pick(service string) ([]string, error) {
	known := maps.Clone(s.floors)
	for name := range s.saved {
		known[name] = 0
	}
	names := slices.Sorted(maps.Keys(known))
	if service == "" {
		return names, nil
	}
	if _, ok := known[service]; !ok {
		return nil, fmt.Errorf("the state holds no service %q; it holds: %s", service, strings.Join(names, ", "))
	}
	return []string{service}, nil
}

func (s *State) dropLeases(names []string) (dropped map[string]int, err error) {
	emptied, dropped := map[string]Saved{}, map[string]int{}
	for _, name := range names {
		saved := s.saved[name]
		dropped[name] = saved.leases() + s.dropped[name]
		emptied[name] = saved.withoutLeases()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return dropped, s.saveLocked(emptied)
}

// AcceptTimeline puts the service on another timeline, by decision of an operator. It
// drops the leases of the old one, and the offer. The new timeline counts as set by a
// lease, so that a lease of yet another one is refused.
//
// decide is called with the service's report, under the lock, so that the values which
// it compares (see ServiceReport.Crossing) cannot change. It returns the timeline to use, or an
// error that AcceptTimeline passes on.
//
// Further errors: *LockedError while a daemon runs, *FileError.
func AcceptTimeline(ctx context.Context, dir, service string, opts Options, decide func(ServiceReport) (snowflake.Timeline, error)) (err error) {
	s, err := openForChange(ctx, dir, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, err := s.pick(service); err != nil {
		return err
	}
	timeline, err := decide(ServiceReport{Name: service, Mark: s.floors[service], Saved: s.saved[service].withoutSecrets()})
	if err != nil {
		return err
	}
	before := s.saved[service]
	if err := s.save(service, Saved{Timeline: timeline, Source: SourceLease, Largest: before.largest(s.floors[service])}); err != nil {
		s.saved[service] = before // allow another attempt
		return err
	}
	return s.Sync()
}

// Crossing compares the IDs made before a change of the timeline with those that
// can be made after it.
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
// Every earlier timestamp is below the mark, and no later one is, whatever the clock
// says, unless an operator has lowered the mark.
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
