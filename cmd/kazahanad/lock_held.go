package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/runner"
	"github.com/kazahana/kazahana/internal/wire"
)

// freshPart: if an acquire took longer than this part of the term, it is repeated.
// The answer then says how much of the term is left. A faster one counts the term
// from before the request.
const freshPart = 3

// repeatPause is the wait before a call is repeated.
const repeatPause = 100 * time.Millisecond

// heldLock is a lock that this process acquires through the daemon, renews and
// releases. It is not bound to a connection (hold): a restart of the daemon would
// end the connection and the lock. It implements runner.Holding.
type heldLock struct {
	client  *caller.Client
	again   func() *caller.Client // makes another client
	key     string
	ttl     time.Duration
	timeout time.Duration // of an answer
	clock   clock.Source

	requestID string      // of the acquire
	inDoubt   bool        // the acquire may have been carried out
	lease     lock.Answer // as it was acquired
	sentAt    time.Duration
	end       time.Duration // on clock.Boot: when the acquire was sent, and the earliest end
}

var _ runner.Holding = (*heldLock)(nil)

func (h *heldLock) close() { _ = h.client.Close() }

// call calls a method, for as long as ctx and the timeout of an answer allow.
func (h *heldLock) call(ctx context.Context, method string, result any, params ...any) error {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	return h.client.Call(ctx, method, result, params...)
}

// reach fails at once if there is no daemon. A daemon that goes away later is
// waited for.
func (h *heldLock) reach(ctx context.Context) error {
	err := h.call(ctx, "Ping", nil)
	if unavailable := new(caller.UnavailableError); errors.As(err, &unavailable) {
		return err
	}
	return ctx.Err()
}

// acquire waits for the lock, and repeats requests without an answer. inDoubt says
// whether the lock may have been acquired in spite of an error.
func (h *heldLock) acquire(ctx context.Context, wait time.Duration) error {
	until := h.clock.Boot() + wait
	ctx, cancel := context.WithTimeout(ctx, wait+h.timeout)
	defer cancel()
	ask := func() error { return h.ask(ctx, max(0, until-h.clock.Boot())) }
	err := repeat(ctx, ask)
	if caller.HasCode(err, wire.CodeRequestIDReused) { // an earlier try was granted, and has ended
		h.requestID = lock.NewLeaseID()
		err = repeat(ctx, ask)
	}
	for err == nil && h.clock.Boot()-h.sentAt > h.ttl/freshPart {
		err = repeat(ctx, ask)
	}
	h.inDoubt = err == nil || unanswered(err)
	return h.explain(err, wait)
}

// ask sends the acquire. It is the same request each time.
func (h *heldLock) ask(ctx context.Context, wait time.Duration) error {
	h.sentAt = h.clock.Boot()
	ctx, cancel := context.WithTimeout(ctx, wait+h.timeout)
	defer cancel()
	err := h.client.Call(ctx, "Lock.Acquire", &h.lease, h.key, map[string]any{
		"ttl_ms": h.ttl.Milliseconds(), "wait_ms": wait.Milliseconds(), "request_id": h.requestID,
	})
	if err == nil {
		h.count(h.sentAt, h.lease)
	}
	return err
}

// count notes the earliest end: the remaining time in the answer, counted from
// before the request. A store with a clock that went back may name more than a term.
func (h *heldLock) count(sent time.Duration, l lock.Answer) {
	h.end = sent + min(time.Duration(l.ExpiresInMS)*time.Millisecond, h.ttl)
}

// explain turns the error of an acquire into a message for the user.
func (h *heldLock) explain(err error, wait time.Duration) error {
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
			wire.CodeLockHeld, h.key, owner, waited, time.Duration(ms)*time.Millisecond)
	case caller.HasCode(err, wire.CodeRequestIDReused):
		return fmt.Errorf("lock %q: %w", h.key, err)
	}
	return refusedUsage(err)
}

// unanswered reports whether a repeated call may succeed: there was no answer, or
// the daemon did not know the outcome yet.
func unanswered(err error) bool {
	if _, ok := errors.AsType[*wire.Error](err); ok {
		return caller.HasCode(err, wire.CodeStoreUnavailable, wire.CodeShuttingDown, wire.CodeOverloaded, wire.CodeTimeout)
	}
	return err != nil
}

// repeat calls until there is an answer, or ctx is done. The call must be
// idempotent.
func repeat(ctx context.Context, call func() error) error {
	for {
		err := call()
		if !unanswered(err) {
			return err
		}
		select {
		case <-time.After(repeatPause):
		case <-ctx.Done():
			return err
		}
	}
}

// undo frees a lock that an abandoned acquire may have been granted. It repeats the
// request to find out: the daemon answers only after it has finished with the request of
// the closed connection.
func (h *heldLock) undo(ctx context.Context) error {
	h.close()
	h.client = h.again()
	err := repeat(ctx, func() error { return h.ask(ctx, 0) })
	switch {
	case err == nil:
		return h.release(ctx)
	case unanswered(err):
		return err
	}
	return nil // it was not granted
}

// Name implements runner.Holding.
func (h *heldLock) Name() string { return fmt.Sprintf("lock %q", h.key) }

// Extend implements runner.Holding.
func (h *heldLock) Extend(ctx context.Context, sent, end time.Duration) (time.Duration, error) {
	var l lock.Answer
	err := h.call(ctx, "Lock.Renew", &l, h.key, map[string]any{"ttl_ms": h.ttl.Milliseconds(), "lease_id": h.lease.LeaseID})
	switch {
	case err == nil:
		h.count(sent, l)
		return h.end, nil
	case lostForGood(err):
		return end, &runner.LostError{Err: fmt.Errorf("%s is lost: %w", h.Name(), err)}
	}
	return end, err
}

// lostForGood reports whether the error means that the lock is lost.
func lostForGood(err error) bool {
	return caller.HasCode(err, wire.CodeLockNotOwned, wire.CodeLockExpired, wire.CodeLockNotFound)
}

// release frees the lock, and repeats that until ctx is done.
func (h *heldLock) release(ctx context.Context) error {
	options := map[string]any{"lease_id": h.lease.LeaseID, "request_id": lock.NewLeaseID()}
	return repeat(ctx, func() error { return h.call(ctx, "Lock.Release", nil, h.key, options) })
}
