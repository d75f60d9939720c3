package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/runner"
	"github.com/kazahana/kazahana/internal/wire"
)

// freshPart is the part of a term that an answer may have taken for the end to be
// counted from before its request. One that waited longer is asked for again,
// which tells what is left by then.
const freshPart = 3

// codeNoStore: the daemon keeps no locks and sequences.
const codeNoStore wire.Code = "NO_STORE"

// heldLock is a lock that this process asks the daemon for, renews and releases,
// by a connection for each request: so it is not lost with the daemon. It
// implements runner.Holding.
type heldLock struct {
	socket  string
	key     string
	ttl     time.Duration
	timeout time.Duration // of an answer
	clock   clock.Source

	requestID string      // of the acquire
	inDoubt   bool        // the acquire failed, and may have been carried out
	lease     lock.Answer // as it was acquired
	sentAt    time.Duration
	end       time.Duration // readings of clock.Boot: when the acquire was sent, and the earliest end
}

var _ runner.Holding = (*heldLock)(nil)

// acquire waits for the lock, and repeats what was not answered. inDoubt tells
// whether the lock may have been acquired in spite of an error.
func (h *heldLock) acquire(ctx context.Context, wait time.Duration) error {
	until := h.clock.Boot() + wait
	ctx, cancel := context.WithTimeout(ctx, wait+h.timeout)
	defer cancel()
	ask := func() error { return h.ask(ctx, max(0, until-h.clock.Boot())) }
	err := ask()
	if unreachable(err) {
		return err // there is no daemon
	}
	for unanswered(err) && ctx.Err() == nil || err == nil && h.clock.Boot()-h.sentAt > h.ttl/freshPart {
		err = repeat(ctx, unanswered, ask)
	}
	h.inDoubt = unanswered(err)
	return h.explain(err, wait)
}

// ask sends the acquire, which is the same each time.
func (h *heldLock) ask(ctx context.Context, wait time.Duration) error {
	h.sentAt = h.clock.Boot()
	ctx, cancel := context.WithTimeout(ctx, wait+h.timeout)
	defer cancel()
	err := callAt(ctx, h.socket, "Lock.Acquire", &h.lease, h.key, map[string]any{
		"ttl_ms": h.ttl.Milliseconds(), "wait_ms": wait.Milliseconds(), "request_id": h.requestID,
	})
	if err == nil {
		h.count(h.sentAt, h.lease)
	}
	return err
}

// count notes the earliest end. The answer is younger than its request, and says
// how long the lock lives from then on. A store whose clock went back says more
// than a term.
func (h *heldLock) count(sent time.Duration, l lock.Answer) {
	h.end = sent + min(time.Duration(l.ExpiresInMS)*time.Millisecond, h.ttl)
}

// explain says why there is no lock.
func (h *heldLock) explain(err error, wait time.Duration) error {
	var refusal *wire.Error
	if !errors.As(err, &refusal) {
		return err
	}
	switch refusal.Code {
	case wire.CodeLockHeld:
		owner, _ := refusal.Detail("owner")
		text, _ := refusal.Detail("retry_after_ms")
		ms, _ := strconv.ParseInt(text, 10, 64)
		waited := ""
		if wait > 0 {
			waited = fmt.Sprintf(" and was not free within %v", wait)
		}
		return fmt.Errorf("%s: lock %q is held by %s%s; try again in %v, when it ends unless it is renewed",
			refusal.Code, h.key, owner, waited, time.Duration(ms)*time.Millisecond)
	case wire.CodeRequestIDReused:
		return fmt.Errorf("lock %q: its term of %v was over before the daemon's answer came", h.key, h.ttl)
	}
	return refusedUsage(err)
}

// refusedUsage makes a usage error of a refusal that will come again.
func refusedUsage(err error) error {
	var refusal *wire.Error
	if errors.As(err, &refusal) && (refusal.Kind == wire.WrongRequest || refusal.Code == codeNoStore) {
		return usageError{err}
	}
	return err
}

// undo frees what an acquire that nobody waits for any more may have been granted.
// The same request, which the daemon answers only once it has dealt with the one
// whose connection was closed, tells.
func (h *heldLock) undo(ctx context.Context) error {
	err := repeat(ctx, unanswered, func() error { return h.ask(ctx, 0) })
	if err == nil {
		return h.release(ctx)
	}
	if unanswered(err) {
		return err
	}
	return nil // it was not granted
}

// Name implements runner.Holding.
func (h *heldLock) Name() string { return fmt.Sprintf("lock %q", h.key) }

// Extend implements runner.Holding.
func (h *heldLock) Extend(ctx context.Context, sent, end time.Duration) (time.Duration, error) {
	var l lock.Answer
	err := callAt(ctx, h.socket, "Lock.Renew", &l, h.key, map[string]any{"ttl_ms": h.ttl.Milliseconds(), "lease_id": h.lease.LeaseID})
	switch {
	case err == nil:
		h.count(sent, l)
		return h.end, nil
	case lostForGood(err):
		return end, &runner.LostError{Err: fmt.Errorf("%s is lost: %w", h.Name(), err)}
	}
	return end, err
}

// lostForGood reports whether an error says that the lock is not ours any more.
func lostForGood(err error) bool {
	var refusal *wire.Error
	return errors.As(err, &refusal) &&
		(refusal.Code == wire.CodeLockNotOwned || refusal.Code == wire.CodeLockExpired || refusal.Code == wire.CodeLockNotFound)
}

// release frees the lock, for as long as ctx allows.
func (h *heldLock) release(ctx context.Context) error {
	options := map[string]any{"lease_id": h.lease.LeaseID, "request_id": lock.NewLeaseID()}
	return repeat(ctx, unanswered, func() error {
		ctx, cancel := context.WithTimeout(ctx, h.timeout)
		defer cancel()
		return callAt(ctx, h.socket, "Lock.Release", nil, h.key, options)
	})
}
