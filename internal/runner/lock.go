package runner

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/wire"
)

// freshPart: if an acquire took longer than this part of the term, it is repeated.
// The answer then says how much of the term is left. A faster one counts the term
// from before the request.
const freshPart = 3

// LockHolding is a lock that this process acquires through the daemon, renews and
// releases. It is not bound to a connection (hold): a restart of the daemon would
// end the connection and the lock.
type LockHolding struct {
	Key     string
	TTL     time.Duration
	Timeout time.Duration // of an answer
	Clock   clock.Source
	Connect func() *caller.Client // makes a client whose calls may take as long as a wait

	InDoubt bool        // the acquire may have been carried out
	Lease   lock.Answer // as it was acquired
	SentAt  time.Duration
	End     time.Duration // on Clock.Boot: when the acquire was sent, and the earliest end

	client    *caller.Client
	requestID string // of the acquire
}

var _ Holding = (*LockHolding)(nil)

// Close ends the connection to the daemon.
func (h *LockHolding) Close() {
	if h.client != nil {
		_ = h.client.Close()
	}
}

// call calls a method, for as long as ctx and the timeout of an answer allow.
func (h *LockHolding) call(ctx context.Context, method string, result any, params ...any) error {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	return h.client.Call(ctx, method, result, params...)
}

// Reach fails at once if there is no daemon. A daemon that goes away later is
// waited for.
func (h *LockHolding) Reach(ctx context.Context) error {
	h.client, h.requestID = h.Connect(), lock.NewLeaseID()
	err := h.call(ctx, "Ping", nil)
	if unavailable := new(caller.UnavailableError); errors.As(err, &unavailable) {
		return err
	}
	return ctx.Err()
}

// Acquire waits for the lock, and repeats requests without an answer. InDoubt says
// whether the lock may have been acquired in spite of an error.
func (h *LockHolding) Acquire(ctx context.Context, wait time.Duration) error {
	until := h.Clock.Boot() + wait
	ctx, cancel := context.WithTimeout(ctx, wait+h.Timeout)
	defer cancel()
	ask := func() error { return h.ask(ctx, max(0, until-h.Clock.Boot())) }
	err := caller.Repeat(ctx, ask)
	if caller.HasCode(err, wire.CodeRequestIDReused) { // an earlier try was granted, and has ended
		h.requestID = lock.NewLeaseID()
		err = caller.Repeat(ctx, ask)
	}
	for err == nil && h.Clock.Boot()-h.SentAt > h.TTL/freshPart {
		err = caller.Repeat(ctx, ask)
	}
	h.InDoubt = err == nil || caller.Unanswered(err)
	return h.explain(err, wait)
}

// ask sends the acquire. It is the same request each time.
func (h *LockHolding) ask(ctx context.Context, wait time.Duration) error {
	h.SentAt = h.Clock.Boot()
	ctx, cancel := context.WithTimeout(ctx, wait+h.Timeout)
	defer cancel()
	err := h.client.Call(ctx, "Lock.Acquire", &h.Lease, h.Key, map[string]any{
		"ttl_ms": h.TTL.Milliseconds(), "wait_ms": wait.Milliseconds(), "request_id": h.requestID,
	})
	if err == nil {
		h.count(h.SentAt, h.Lease)
	}
	return err
}

// count notes the earliest end: the remaining time in the answer, counted from
// before the request. A store with a clock that went back may name more than a term.
func (h *LockHolding) count(sent time.Duration, l lock.Answer) {
	h.End = sent + min(time.Duration(l.ExpiresInMS)*time.Millisecond, h.TTL)
}

// explain turns the error of an acquire into a message for the user.
func (h *LockHolding) explain(err error, wait time.Duration) error {
	var refusal *wire.Error
	switch {
	case caller.HasCode(err, wire.CodeLockHeld) && errors.As(err, &refusal):
		waited := ""
		if wait > 0 {
			waited = fmt.Sprintf(" and was not free within %v", wait)
		}
		owner, _ := refusal.Detail("owner")
		left, _ := refusal.Detail("retry_after_ms")
		ms, _ := strconv.ParseInt(left, 10, 64)
		return fmt.Errorf("%s: lock %q is held by %s%s; try again in %v, when it ends unless it is renewed",
			wire.CodeLockHeld, h.Key, owner, waited, time.Duration(ms)*time.Millisecond)
	case caller.HasCode(err, wire.CodeRequestIDReused):
		return fmt.Errorf("lock %q: %w", h.Key, err)
	}
	return err
}

// Undo frees a lock that an abandoned acquire may have been granted. It repeats the
// request to find out: the daemon answers only after it has finished with the request of
// the closed connection.
func (h *LockHolding) Undo(ctx context.Context) error {
	h.Close()
	h.client = h.Connect()
	err := caller.Repeat(ctx, func() error { return h.ask(ctx, 0) })
	switch {
	case err == nil:
		return h.Release(ctx)
	case caller.Unanswered(err):
		return err
	}
	return nil // it was not granted
}

// Name implements Holding.
func (h *LockHolding) Name() string { return fmt.Sprintf("lock %q", h.Key) }

// Extend implements Holding.
func (h *LockHolding) Extend(ctx context.Context, sent, end time.Duration) (time.Duration, error) {
	var l lock.Answer
	err := h.call(ctx, "Lock.Renew", &l, h.Key, map[string]any{"ttl_ms": h.TTL.Milliseconds(), "lease_id": h.Lease.LeaseID})
	switch {
	case err == nil:
		h.count(sent, l)
		return h.End, nil
	case caller.HasCode(err, wire.CodeLockNotOwned, wire.CodeLockExpired, wire.CodeLockNotFound):
		return end, &LostError{Err: fmt.Errorf("%s is lost: %w", h.Name(), err), Gone: true}
	}
	return end, err
}

// Release frees the lock, and repeats that until ctx is done.
func (h *LockHolding) Release(ctx context.Context) error {
	options := map[string]any{"lease_id": h.Lease.LeaseID, "request_id": lock.NewLeaseID()}
	return caller.Repeat(ctx, func() error { return h.call(ctx, "Lock.Release", nil, h.Key, options) })
}
