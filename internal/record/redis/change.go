package redis

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/turns"
)

const (
	// maxLooks bounds how often a server may change while it is looked at.
	maxLooks = 10
	// forever is later than every moment.
	forever = 1<<(8*momentBytes) - 1
	// noFloor is none that is compared, or set.
	noFloor = -1
)

// change is one call of Change.
type change struct {
	*Store
	ask   record.Ask
	nonce nonce
	life  *life // nil before the server is known
	// The sight: the records of the ask, the time, and the floor.
	seen  []known
	one   [1]known // has room for seen
	nowMS int64
	floor int64
	// sure: that was the present during the call. confirmed: replicas have it.
	sure, confirmed bool
	extra           [][]any // commands of the store's own, carried out with the writes
	batch           batch   // the next batch to send, or the last one sent
}

// spare has changes that have ended: their room is used again.
var spare = sync.Pool{New: func() any { return new(change) }}

// leave is for a change that has ended. Neither what its rule has seen nor a command that may
// still be under way refers to it.
func (c *change) leave() {
	*c = change{}
	spare.Put(c)
}

// Change implements record.Store.
func (s *Store) Change(ctx context.Context, ask record.Ask, rule record.Rule) (atMS int64, err error) {
	if err := cmp.Or(ask.Validate(), ctx.Err()); err != nil {
		return 0, err
	}
	held, err := s.turns.Take(ctx, ask.Keys)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.place, err)
	}
	c := s.newChange(ask)
	for _, key := range ask.Keys {
		c.seen = append(c.seen, held.Known(key))
	}
	atMS, err = turns.Run(ctx, held, c, s.place, ask, s.area.Checked(ask, rule))
	for i, key := range ask.Keys {
		if k := c.seen[i]; k.absent() {
			held.Forget(key)
		} else {
			held.Remember(key, k)
		}
	}
	held.Give()
	c.leave()
	s.sweepNow()
	return atMS, err
}

func (s *Store) newChange(ask record.Ask) *change {
	c := spare.Get().(*change)
	c.Store, c.ask, c.life, c.nowMS = s, ask, s.life.Load(), s.estimate()
	if c.life != nil {
		c.floor = c.life.seenFloor.Load()
	}
	c.seen = c.one[:0]
	binary.NativeEndian.PutUint64(c.nonce[:], rand.Uint64())
	return c
}

// View implements turns.Change. A rule that compares times gets those of the server; while there
// is a fence, all do.
func (c *change) View() (v record.View, ok bool) {
	if c.life == nil || !c.sure && (c.ask.Fresh || !c.life.Trusted) {
		return record.View{}, false
	}
	v = record.View{
		Records: make(map[string]record.Record, len(c.seen)),
		NowMS:   c.nowMS, Floor: c.floor, Life: c.life.name, Fence: c.life.fence(c.limits, c.nowMS),
	}
	for i, k := range c.seen {
		if !k.absent() {
			v.Records[c.ask.Keys[i]] = k.record(c.nowMS)
		}
	}
	return v, true
}

// Settled implements turns.Change. A repetition of an earlier change is answered when replicas
// know of that.
func (c *change) Settled(refused bool) bool {
	return c.sure && (refused || c.confirmed || c.cfg.MinReplicas == 0)
}

// Confirm implements turns.Change.
func (c *change) Confirm(ctx context.Context) error {
	if !c.sure {
		return c.look(ctx)
	}
	_, outcome, err := c.Commit(ctx, nil)
	c.confirmed = outcome == turns.Done
	return err
}

// look sees the present.
func (c *change) look(ctx context.Context) error {
	for range maxLooks {
		if c.life == nil {
			l, err := redisconn.RunAnywhere(ctx, c.client, redisconn.Repeatable, c.hello)
			if err != nil {
				return err
			}
			c.life = l
		}
		a, err := c.send(ctx, c.newBatch(looks))
		if err != nil {
			return err
		}
		if !a.changed {
			return c.understand(a)
		}
		c.life = nil
	}
	return fmt.Errorf("%s: %w", c.place, errChanged)
}

// Commit implements turns.Change.
func (c *change) Commit(ctx context.Context, writes []record.Write) (atMS int64, o turns.Outcome, err error) {
	if same, err := c.lengthen(ctx, writes); err != nil || !same {
		return 0, turns.Old, err
	}
	o = turns.Old
	if c.sure {
		o = turns.Raced
	}
	b := c.prepare(writes)
	a, err := c.send(ctx, b)
	switch {
	case err != nil:
		c.seen, c.sure = make([]known, len(c.seen)), false
		return 0, o, err
	case a.done:
		c.committed(b, a.nowMS)
		return a.nowMS, turns.Done, a.unconfirmed
	case a.changed:
		c.life, o = nil, turns.Old
		err = c.look(ctx)
	default:
		err = c.understand(a)
	}
	switch {
	case a.lost && err != nil: // it is not wrapped: it may say that nothing was sent
		return 0, turns.Old, fmt.Errorf("%s: record %q: %w: %v", c.place, c.ask.Keys, record.ErrOutrun, err)
	case a.lost: // an earlier try may have been carried out
		return 0, turns.Old, fmt.Errorf("%s: record %q: %w", c.place, c.ask.Keys, record.ErrOutrun)
	case err != nil:
		return 0, o, err
	case o == turns.Raced:
		c.sure = false // by the next try, after a pause
	}
	return 0, o, nil
}

// lengthen records how long the grants among the writes last, before they are made. It reports
// whether the sight still counts.
func (c *change) lengthen(ctx context.Context, writes []record.Write) (same bool, err error) {
	var most int64
	for _, w := range writes {
		most = max(most, w.GrantMS)
	}
	if most <= c.life.LongestMS {
		return true, nil
	}
	before := c.life.facts
	c.life, err = c.edit(ctx, func(st *state, _ int64) { st.LongestMS = max(st.LongestMS, longest(most)) })
	if err != nil {
		return false, err
	}
	before.LongestMS = c.life.LongestMS
	if before == c.life.facts {
		return true, nil
	}
	return false, c.look(ctx)
}
