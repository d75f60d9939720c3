package keeper

import (
	"slices"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/state"
)

// releaseChunk is how many leases a stop forgets at a time before it sends
// their releases: a kill -9 in between costs the next start no more.
const releaseChunk = 16

// stopping is a stop under way: the generator is sealed against every lease, and
// they are given back where that costs the next start nothing.
//
// A stop is never worse than a kill -9, which keeps the leases: where the provider
// does not answer a verify, all of them stay in the live state for the next start,
// and so does each lease with a release that was not sent or was refused. A lease with a
// release that was sent and not answered is gone: the provider may have taken it back.
type stopping struct {
	asked  bool          // whether the leases are ours still
	before state.Saved   // before the present chunk was forgotten
	kept   []lease.Lease // of the chunk: the provider certainly did not take them back
	over   bool          // only Done is left
	forgot bool          // the live state lacks some of the leases
}

func (c *Core) onStop() Action {
	c.stop = &stopping{forgot: len(c.leaving) > 0}
	c.saved.Held = slices.Concat(c.saved.Held, c.leaving) // given back like the others
	c.todo, c.leaving, c.refused, c.answer = nil, nil, nil, nil
	return Publish{}
}

func (c *Core) nextOfStop() (action Action, again bool) {
	s, all := c.stop, c.all()
	switch {
	case len(s.kept) > 0:
		c.putBack()
		return nil, true
	case s.over || len(all) == 0:
		return Done{}, false
	case !s.asked:
		s.asked = true
		if ours := c.reserved(); len(ours) > 0 && !c.at.Halt {
			return Verify{ours}, false
		}
		c.keepAll()
		return nil, true
	case c.at.Halt:
		return Done{}, false
	}
	// A kill -9 in between costs the next start no more than a chunk.
	s.before = c.saved
	c.leaving = all[:min(releaseChunk, len(all))]
	c.leave()
	return nil, true
}

// keepAll ends the stop without a release.
func (c *Core) keepAll() {
	c.stop.over = true
	if c.stop.forgot {
		c.todo = append(c.todo, toSave)
	}
	c.report.line(zap.InfoLevel, "the provider has not answered just now: the leases are kept for the next start", zap.Int("leases", len(c.all())))
}

// putBack lets the next start find the leases that were kept, and leases that were
// not to be released yet.
func (c *Core) putBack() {
	s := c.stop
	stays := append(s.kept, c.all()...)
	c.saved.Held = slices.DeleteFunc(slices.Clone(s.before.Held), func(l lease.Lease) bool { return !has(stays, l) })
	if s.before.Cached != nil && has(stays, *s.before.Cached) {
		c.saved.Cached = s.before.Cached
	}
	s.kept, s.over = nil, true
	c.todo = append(c.todo, toSave)
	c.report.line(zap.InfoLevel, "leases that the provider did not take back are kept for the next start", zap.Int("leases", len(c.all())))
}
