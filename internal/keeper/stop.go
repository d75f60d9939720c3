package keeper

import (
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/state"
)

// stopping is a stop under way: the generator is sealed against every lease, and they are given
// back one after the other where that costs the next start nothing.
//
// A stop is never worse than a kill -9, which keeps the leases: where the provider does not
// answer a verify, all of them stay in the live state for the next start. So does a lease with
// a release that was not sent or was refused, with all that follow it. A lease with a release
// that was sent and not answered is gone: the provider may have taken it back.
type stopping struct {
	asked  bool        // whether the leases are ours still
	before state.Saved // before the lease that is on its way back was forgotten
	over   bool        // only Done is left
}

func (c *Core) onStop() Action {
	c.stop, c.refused = &stopping{}, nil
	return Publish{}
}

func (c *Core) nextOfStop() (action Action, again bool) {
	s, all := c.stop, c.all()
	switch {
	case s.over || len(all) == 0:
		return Done{}, false
	case !s.asked:
		s.asked = true
		if ours := c.reserved(); len(ours) > 0 && !c.at.Halt {
			return Verify{ours}, false
		}
		c.keep()
		return nil, true
	}
	s.before = c.saved
	c.leaving = all[:1]
	c.leave()
	return nil, true
}

// keep ends the stop: the next start finds the leases that are left.
func (c *Core) keep() {
	c.stop.over = true
	if left := len(c.all()); left > 0 {
		c.report.line(zap.InfoLevel, "leases are kept for the next start: the provider has not answered just now, or did not take one back", zap.Int("leases", left))
	}
}

// putBack ends the stop, and lets the next start also find the lease that was on its way back.
func (c *Core) putBack() {
	c.saved = c.stop.before
	c.todo = append(c.todo, toSave)
	c.keep()
}
