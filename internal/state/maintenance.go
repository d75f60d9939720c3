package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Floor is what ResetFloor did to one service.
type Floor struct {
	Service string
	Before  int64 // the mark, in Unix ms; 0 also where it was lost
	After   int64
	Leases  int // how many were dropped, the cached one included
}

// ResetFloor lowers the mark of the service, or of all services where service
// is empty, to nowMS. A mark that is lower already stays. It also makes up for a
// marks file that is missing or lacks the service.
//
// The leases go first, durably: the IDs that follow are made under grants yet to
// come, hence unique, but they need not be greater than those that were dated
// ahead. A crash in between leaves the old floor and no leases, which is safe.
//
// Errors: *LockedError while a daemon runs, *FileError.
func ResetFloor(dir, service string, nowMS int64, opts Options) ([]Floor, error) {
	return resetFloor(dir, service, nowMS, opts, func() {})
}

func resetFloor(dir, service string, nowMS int64, opts Options, between func()) (_ []Floor, err error) {
	if nowMS <= 0 {
		return nil, fmt.Errorf("a mark of %d ms is no time", nowMS)
	}
	s, err := open(dir, opts, forReset)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	s.mu.Lock()
	names, err := s.pick(service)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	dropped, err := s.dropLeases(names)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	between()
	var floors []Floor
	for _, name := range names {
		before, known := s.marks.get(name)
		after := nowMS
		if known {
			after = min(before, nowMS)
		} else if _, err := s.marks.add(name); err != nil {
			return floors, err
		}
		s.marks.lower(name, after)
		floors = append(floors, Floor{Service: name, Before: before, After: after, Leases: dropped[name]})
	}
	return floors, s.marks.sync()
}

// pick returns the names of all services, or checks the one that is given.
func (s *State) pick(service string) ([]string, error) {
	known := maps.Clone(s.marks.names)
	for name := range s.stored {
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
		saved := s.stored[name]
		n := saved.leases()
		dropped[name] = n + s.dropped[name]
		if n > 0 {
			emptied[name] = saved.withoutLeases()
		}
	}
	if len(emptied) == 0 {
		return dropped, nil
	}
	return dropped, s.replace(emptied)
}

// AcceptTimeline puts the service on another timeline, as an operator decided:
// the leases of the old one and the offer are dropped. The new timeline counts
// as set by a lease, so that a lease of yet another one is refused.
//
// decide is called under the lock with what is known of the service, so that
// what it compares (see CrossTimelines) cannot change before it is done. It
// returns the timeline to use, or an error that AcceptTimeline passes on.
//
// Further errors: *LockedError while a daemon runs, *FileError.
func AcceptTimeline(dir, service string, opts Options, decide func(ServiceReport) (snowflake.Timeline, error)) (err error) {
	s, err := open(dir, opts, forChange)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, err := s.pick(service); err != nil {
		return err
	}
	sv, err := s.Service(service)
	if err != nil {
		return err
	}
	timeline, err := decide(ServiceReport{Name: service, Mark: sv.Mark(), Saved: sv.Load().withoutSecrets()})
	if err != nil {
		return err
	}
	return sv.Save(Saved{Timeline: timeline, Source: SourceLease})
}

// Crossing compares the IDs made before a change of the timeline with those that
// can be made after it.
type Crossing struct {
	HasOld      bool         // an ID can have been made
	LargestOld  snowflake.ID // no ID so far is greater
	HasNew      bool         // the new timeline can hold the time that comes
	SmallestNew snowflake.ID // no ID from now on is smaller
}

// Ascends reports whether every new ID is greater than every old one, so that
// the change repeats none.
func (c Crossing) Ascends() bool { return c.HasNew && (!c.HasOld || c.SmallestNew > c.LargestOld) }

// CrossTimelines computes the Crossing from old to next of a service with that
// mark. The mark is below every timestamp to come and above every one used,
// whatever the clock says. (Not after a ResetFloor, from which IDs dated ahead
// remain.)
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
