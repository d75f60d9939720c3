package proof

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

// stream is a service in one life of its daemon: the generator and the keeper, and the code
// between the rooms, where most of the rules are switched off.
type stream struct {
	*life
	svc    *service
	sv     *state.Service
	gen    *generator.Generator
	keeper *keeper.Keeper
	busy   bool // the keeper waits for what becomes of an action
	// stopped: the keeper's last turn has begun.
	stopped bool

	held    []lease.Lease // as the keeper published them
	cached  *lease.Lease
	cause   error
	given   []lease.Lease // what the generator has: more than held with sealedBeforeSending off
	waiting []*request
	reading generator.Reading // an old one

	trail  trailed      // what the world's trail knows of it
	unsent *state.Saved // with removedBeforeSending off: not written yet
}

// request is a call for IDs that waits in the generator's queue.
type request struct {
	pending *generator.Pending
	after   snowflake.ID // its IDs are greater
	from    int          // steps of the world's trail when it came
	ended   atomic.Bool
}

// timeouts end at no moment at which another timer fires; see world.sleep.
var timeouts = []time.Duration{0, 3*time.Millisecond + time.Microsecond, 50*time.Millisecond + time.Microsecond, 10*time.Second + time.Microsecond}

// NowNS is the clock of the generator. No two daemons' clocks show a full
// millisecond at the same moment, so that their timers fire one after the other.
func (s *stream) NowNS() int64 {
	return time.Now().Add(s.d.phase).UnixNano() + s.d.offset.Load()*int64(time.Millisecond)
}

// RaiseMark is the mark of the generator.
func (s *stream) RaiseMark(ms int64) {
	if !s.d.w.without(markInLiveState) {
		s.sv.RaiseMark(ms)
	}
}

// Load is what the keeper finds at its start.
func (s *stream) Load() state.Saved {
	saved := s.sv.Load()
	if s.d.w.without(adoptedFromLiveStateOnly) && len(saved.Held) == 0 && saved.Cached == nil {
		return s.loadFromDisk(saved)
	}
	return saved
}

// Save is the keeper's store. SaveAfterLoss is the same with what the product does then.
func (s *stream) Save(saved state.Saved) error { return s.saveBy(s.sv.Save, saved) }

func (s *stream) SaveAfterLoss(saved state.Saved) error { return s.saveBy(s.sv.SaveAfterLoss, saved) }

func (s *stream) saveBy(save func(state.Saved) error, saved state.Saved) error {
	w, before := s.d.w, s.sv.Load()
	left := func(l lease.Lease) bool { return !contains(saved.Held, l) && !isCached(saved.Cached, l) }
	switch {
	case w.without(removedBeforeSending) && slices.ContainsFunc(before.Held, left):
		s.unsent = &saved
		return nil
	case w.without(releasedNeverCached):
		for _, l := range before.Held {
			if !contains(saved.Held, l) {
				saved.Cached = &l
			}
		}
	}
	return s.save(save, saved)
}

func (s *stream) save(save func(state.Saved) error, saved state.Saved) error {
	s.unsent = nil
	s.d.w.trail.saves(s, saved)
	err := save(saved)
	if err == nil {
		s.d.w.trail.saved(s, saved)
	}
	if err != nil {
		s.d.w.count("live state not written")
	} else if s.d.w.without(adoptedFromLiveStateOnly) {
		s.saveToDisk(saved)
	}
	return err
}

// flush writes what should have been written before the release.
func (s *stream) flush() {
	if s.unsent != nil {
		_ = s.save(s.sv.Save, *s.unsent)
	}
}

// onDisk is a content of the state directory as it was before there was a live
// state. The file holds the number of its entry in world.onDisk.
type onDisk struct {
	by    state.Identity
	saved state.Saved
}

func (s *stream) diskFile() string { return "leases of " + s.svc.name }

func (s *stream) saveToDisk(saved state.Saved) {
	w, f := s.d.w, s.disk.fs
	w.onDisk = append(w.onDisk, onDisk{s.d.at.identity(), saved})
	text := fmt.Appendf(nil, "%8d", len(w.onDisk)-1)
	if n := s.disk.node.entries[s.diskFile()]; n != nil {
		f.write(n, text)
	} else {
		f.put(s.disk.node, s.diskFile(), f.newFile(text))
	}
}

func (s *stream) loadFromDisk(saved state.Saved) state.Saved {
	n := s.disk.node.entries[s.diskFile()]
	if n == nil {
		return saved
	}
	var number int
	if _, err := fmt.Sscan(strings.TrimSpace(string(n.bytes())), &number); err != nil {
		return saved
	}
	if found := s.d.w.onDisk[number]; found.by == s.d.at.identity() {
		return found.saved
	}
	return saved
}

// publish gives the generator its leases, as the keeper asks.
func (s *stream) publish(p keeper.Publish) {
	s.given = p.Held
	if s.d.w.without(sealedBeforeSending) {
		s.given = slices.Clone(p.Held)
		for _, l := range s.held {
			if !contains(p.Held, l) {
				s.given = append(s.given, l)
			}
		}
	}
	had, hadCached := s.held, s.cached
	s.held, s.cached, s.cause = p.Held, p.Cached, p.Cause
	s.d.w.trail.gets(s, p.Held)
	s.give()
	s.d.w.trail.loses(s, had, hadCached)
}

func (s *stream) give() {
	s.gen.Update(s.given, s.cached, s.cause)
	s.collect()
}

// ask asks the generator for n IDs, as a caller does. Some callers stand in the
// queue when it returns.
func (s *stream) ask(n int64, regularOnly bool) {
	s.run(func() {
		w := s.d.w
		if w.without(embeddedTimestampChecked) {
			s.openLeases()
			defer s.give()
		}
		at := generator.Reading(0)
		switch w.rnd.IntN(4) {
		case 0:
			s.reading = s.gen.Read()
		case 1:
			at = s.reading // of a burst that takes long
		}
		timeout := pick(w, timeouts)
		r := &request{after: s.svc.last, from: len(w.trail.Steps)}
		req := generator.Request{Count: n, RegularOnly: regularOnly, Timeout: timeout}
		ranges, pending, err := s.gen.Start(at, req, nil)
		if err == nil && pending == nil {
			s.got(r, ranges)
		}
		if r.pending = pending; pending != nil {
			s.waiting = append(s.waiting, r)
			pending.Notify(func() { r.ended.Store(true) })
			w.count("requests that waited")
		}
		s.collect() // a caller who joins moves the queue
	})
}

// openLeases hands the generator the leases that the clock allows now as if they
// allowed everything, and lets time pass before an ID is made: the effect of a check of
// leases by a clock and not by the embedded time.
func (s *stream) openLeases() {
	w, now := s.d.w, s.d.clock()
	var open []lease.Lease
	for _, l := range s.given {
		if l.Allows(now) {
			l.Created, l.Expired = 0, 1<<50
			l.ReservedUntil = l.Expired
			open = append(open, l)
		}
	}
	s.gen.Update(open, s.cached, s.cause)
	s.collect()
	switch w.rnd.IntN(60) {
	case 0:
		s.d.jump(w.rnd.Int64N(61) - 30)
	case 1, 2, 3:
		w.sleep(time.Duration(w.rnd.IntN(5)) * time.Millisecond)
	}
}

// collect takes what callers in the queue have got by now.
func (s *stream) collect() {
	s.waiting = slices.DeleteFunc(s.waiting, func(r *request) bool {
		if !r.ended.Load() {
			return false
		}
		if ranges, err := r.pending.Result(); err == nil {
			s.got(r, ranges)
		}
		return true
	})
}

// got tells the world of the IDs of one answer.
func (s *stream) got(r *request, ranges []generator.Range) {
	before := r.after
	for _, part := range ranges {
		for i := range part.Count {
			id := part.Start + snowflake.ID(i)
			s.d.w.issued(s, id, part.Kind, before, r.from)
			before = id
		}
	}
	s.svc.last = max(s.svc.last, before)
}

// impatient ends the wait of waiting requests.
func (s *stream) impatient() {
	for _, r := range s.waiting {
		r.pending.Cancel(context.Canceled)
	}
	s.collect()
}

// step lets the keeper take its due steps.
func (s *stream) step() {
	s.run(func() {
		s.turn(s.doDue)
	})
}

// reservation is until when the lease that gave low at the time is reserved.
func (s *stream) reservation(low, at int64) (until int64) {
	leases := s.given
	if s.cached != nil {
		leases = append(leases[:len(leases):len(leases)], *s.cached)
	}
	for _, l := range leases {
		if slot := l.Slot(); slot.Start <= low && low < slot.End && l.Created <= at {
			until = max(until, l.ReservedUntil)
		}
	}
	return until
}

func contains(leases []lease.Lease, l lease.Lease) bool {
	return slices.ContainsFunc(leases, func(other lease.Lease) bool { return other.Key() == l.Key() })
}

func isCached(cached *lease.Lease, l lease.Lease) bool {
	return cached != nil && cached.Key() == l.Key()
}

func deref(l *lease.Lease) []lease.Lease {
	if l == nil {
		return nil
	}
	return []lease.Lease{*l}
}

func (s *stream) name() string { return s.d.name + "/" + s.svc.name }
