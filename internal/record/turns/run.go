package turns

import (
	"context"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

const (
	// maxTries bounds the tries of a change that loses races. With the pauses between,
	// that is some seconds.
	maxTries  = 200
	firstWait = 2 * time.Millisecond
	maxWait   = 100 * time.Millisecond
)

// Outcome is what became of a commit.
type Outcome int

const (
	// Old: the decision rested on remembered records, and the present differs.
	Old Outcome = iota
	// Raced: the decision rested on the present, and others were faster.
	Raced
	// Done: the writes were carried out.
	Done
)

// Change is one call of record.Store.Change. It begins with the process's memory, and with
// absence where there is none.
type Change interface {
	// View returns the last sight. ok is false where no rule can run on it.
	View() (v record.View, ok bool)
	// Settled reports whether a decision not to write may rest on the view. refused says
	// that the rule returned an error.
	Settled(refused bool) bool
	// Confirm does what Settled wants, or sees the present.
	Confirm(ctx context.Context) error
	// Commit carries the writes out if everything is as it was seen. Where it is not, the
	// present is seen.
	Commit(ctx context.Context, writes []record.Write) (atMS int64, o Outcome, err error)
}

// Run runs the rule, which is checked, until its decision holds. place names the store in errors.
func Run[K any](ctx context.Context, h *Held[K], c Change, place string, ask record.Ask, rule record.Rule) (atMS int64, err error) {
	wait := firstWait
	busy := func(why error) error {
		if why == nil {
			return fmt.Errorf("%s: record %q: %w", place, ask.Keys, record.ErrBusy)
		}
		return fmt.Errorf("%s: record %q: %w: %w", place, ask.Keys, record.ErrBusy, why)
	}
	if h.pace > firstWait { // others race for the records: it is their turn
		if err := h.pause(ctx, h.pace); err != nil {
			return 0, busy(err)
		}
		wait = h.pace / 2
	}
	defer func() { h.pace = wait }()
	for range maxTries {
		v, ok := c.View()
		if !ok {
			if err := c.Confirm(ctx); err != nil {
				return 0, err
			}
			continue
		}
		writes, err := rule(v)
		if err != nil || len(writes) == 0 {
			if c.Settled(err != nil) {
				return v.NowMS, err
			}
			if err := c.Confirm(ctx); err != nil {
				return 0, err
			}
			continue
		}
		atMS, outcome, err := c.Commit(ctx, writes)
		if err != nil || outcome == Done {
			return atMS, err
		}
		if outcome == Raced {
			if err := h.pause(ctx, wait); err != nil {
				return 0, busy(err)
			}
			wait = min(2*wait, maxWait)
		}
	}
	return 0, busy(nil)
}

// pause waits for about so long.
func (h *Held[K]) pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(h.turns.spread(wait))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
