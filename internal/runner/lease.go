package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// LeaseHolding is a lease of a machine ID, extended by its provider.
type LeaseHolding struct {
	Lease lease.Lease   // with the times that it has now; not to be read while a Run is under way
	Term  time.Duration // as it was granted
	// Passed: this host's clock was seen past the lease's end, so that the program
	// may have dated IDs beyond it. As Lease, not to be read during a Run.
	Passed bool

	extender provider.Extender
	service  string
	clock    clock.Source
	say      func(format string, args ...any)
}

// HoldLease returns the holding of a lease as it was granted.
func HoldLease(l lease.Lease, extender provider.Extender, service string, source clock.Source, say func(format string, args ...any)) *LeaseHolding {
	return &LeaseHolding{
		Lease: l, Term: time.Duration(l.Term()) * time.Millisecond,
		extender: extender, service: service, clock: source, say: say,
	}
}

// Name implements Holding.
func (h *LeaseHolding) Name() string { return fmt.Sprintf("the lease of machine ID %d", h.Lease.ID) }

// Extend implements Holding. A provider whose clock leaps ahead says that the
// lease lasts for longer than it can: the end moves by no more than the provider
// moved it, and no further than a term from now.
func (h *LeaseHolding) Extend(ctx context.Context, sent, end time.Duration) (time.Duration, error) {
	longer, err := h.extender.Extend(ctx, h.service, h.Lease)
	if err == nil && longer.Key() != h.Lease.Key() {
		err = fmt.Errorf("the provider extended %v instead of %v", longer, h.Lease)
	}
	switch {
	case err == nil:
		moved := time.Duration(longer.Expired-h.Lease.Expired) * time.Millisecond
		end = max(end, min(end+moved, sent+h.Term))
		h.Lease = longer
	case errors.Is(err, provider.ErrBadSignature):
		err = &LostError{fmt.Errorf("machine ID %d was granted to somebody else: %w", h.Lease.ID, err)}
	case slices.ContainsFunc(final, func(f error) bool { return errors.Is(err, f) }):
		err = &LostError{fmt.Errorf("%s cannot be extended: %w", h.Name(), err)}
	}
	if h.clock.Wall()/int64(time.Millisecond) >= h.Lease.Expired {
		h.Passed = true
		h.say("this host's clock is ahead of the provider's, past the lease's end at %s: IDs dated then can be repeated by the machine ID's next holder; see that both clocks are right",
			snowflake.FormatMS(h.Lease.Expired))
	}
	return end, err
}

// final are the errors after which asking again cannot help.
var final = []error{provider.ErrNotFound, provider.ErrConflict, provider.ErrInvalid, errors.ErrUnsupported}

// CheckClock reports, as an error, that the local clock is past the lease, which
// was granted just now.
func CheckClock(l lease.Lease, wallMS int64) error {
	if wallMS < l.Expired {
		return nil
	}
	return fmt.Errorf("this host's clock is %v ahead of the provider's: the lease has ended by it before it began; see that both clocks are right (NTP)",
		(time.Duration(wallMS-l.Created) * time.Millisecond).Round(time.Second))
}
