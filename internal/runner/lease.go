package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// LeaseHolding is a lease of a machine ID, extended and verified by its provider.
type LeaseHolding struct {
	Lease lease.Lease   // with the times that it has now; not to be read while a Run is under way
	Term  time.Duration // as it was granted

	provider provider.Provider
	service  string
	clock    clock.Source
	say      func(format string, args ...any)
}

// HoldLease returns the holding of a lease as it was granted by p, which must be
// able to extend it.
func HoldLease(l lease.Lease, p provider.Provider, service string, source clock.Source, say func(format string, args ...any)) *LeaseHolding {
	return &LeaseHolding{
		Lease: l, Term: time.Duration(l.Term()) * time.Millisecond,
		provider: p, service: service, clock: source, say: say,
	}
}

// RobberyDelay is how long a program waits for a former holder of its machine ID after
// the store has lost that one's grant. That holder's last good answer may have been sent
// just before this grant. It asks again after an interval, or when a hanging call is
// given up; an extension may come in between. Then its program has a tenth of the term
// until it is killed, see machine.terminated.
func RobberyDelay(verifyEvery, timeout, term time.Duration) time.Duration {
	return max(verifyEvery, timeout) + 2*timeout + term/terminatePart
}

// Name implements Holding.
func (h *LeaseHolding) Name() string { return fmt.Sprintf("the lease of machine ID %d", h.Lease.ID) }

// Extend implements Holding. A provider with a clock that jumps ahead names an end that
// is too late: so the end moves by no more than the provider moved it, and no further
// than a term from now.
func (h *LeaseHolding) Extend(ctx context.Context, sent, end time.Duration) (time.Duration, error) {
	longer, err := h.extend(ctx)
	switch {
	case err == nil:
		moved := time.Duration(longer.Expired-h.Lease.Expired) * time.Millisecond
		end = max(end, min(end+moved, sent+h.Term))
		h.Lease = longer
	case errors.Is(err, provider.ErrBadSignature), errors.Is(err, provider.ErrNotFound):
		err = h.missing(ctx, err)
	case errors.Is(err, provider.ErrConflict):
		err = &LostError{Err: fmt.Errorf("%s cannot be extended: %w", h.Name(), err), Gone: true}
	case errors.Is(err, errors.ErrUnsupported): // it may pass: a proxy, while it is restarted, answers so
		err = fmt.Errorf("%s cannot be extended: %w", h.Name(), err)
	case errors.Is(err, provider.ErrInvalid):
		err = &LostError{Err: fmt.Errorf("%s cannot be extended: %w", h.Name(), err)}
	}
	if h.clock.Wall()/int64(time.Millisecond) >= h.Lease.Expired {
		h.say("this host's clock is ahead of the provider's, past the lease's end at %s: IDs dated then can be repeated by the machine ID's next holder; see that both clocks are right",
			snowflake.FormatMS(h.Lease.Expired))
	}
	return end, err
}

// missing handles the refusal of an extension because the store has no such lease. While
// a store that may have forgotten it grants nothing, the lease is not lost: it is valid
// until its known end.
func (h *LeaseHolding) missing(ctx context.Context, refusal error) error {
	err := h.Verify(ctx)
	var lost *LostError
	switch {
	case err == nil:
		return fmt.Errorf("the store has forgotten it and grants no machine ID for now, so it lasts until its end: %w", refusal)
	case errors.As(err, &lost):
		return lost
	}
	if errors.Is(refusal, provider.ErrBadSignature) {
		return &LostError{Err: fmt.Errorf("machine ID %d was granted to another holder: %w", h.Lease.ID, refusal), Gone: true}
	}
	return &LostError{Err: fmt.Errorf("%s cannot be extended: %w", h.Name(), refusal), Gone: true}
}

// Verify asks whether the lease is still this holder's. A *LostError means that it is
// not; any other error, that it is not known.
func (h *LeaseHolding) Verify(ctx context.Context) error {
	lost, err := provider.Verify(ctx, h.provider, h.service, []lease.Lease{h.Lease})
	if err != nil || len(lost) == 0 {
		return err
	}
	return &LostError{Err: fmt.Errorf("machine ID %d is no longer ours: the provider knows another holder of it, or none", h.Lease.ID), Gone: true}
}

func (h *LeaseHolding) extend(ctx context.Context) (lease.Lease, error) {
	longer, err := provider.Extend(ctx, h.provider, h.service, h.Lease)
	if err == nil && longer.Key() != h.Lease.Key() {
		err = fmt.Errorf("the provider extended %v instead of %v", longer, h.Lease)
	}
	return longer, err
}

// CheckClock returns an error if the local clock is past the end of a lease that was
// granted just now.
func CheckClock(l lease.Lease, wallMS int64) error {
	if wallMS < l.Expired {
		return nil
	}
	return fmt.Errorf("this host's clock is %v ahead of the provider's: the lease has ended by it before it began; see that both clocks are right (NTP)",
		(time.Duration(wallMS-l.Created) * time.Millisecond).Round(time.Second))
}
