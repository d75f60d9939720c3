package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/wire"
	"go.uber.org/zap"
)

const (
	// localTenant is the tenant of all peers of the socket.
	localTenant = "default"
	// defaultLockTTL is the term of a lock where the acquire names none.
	defaultLockTTL = 30 * time.Second
	// maxLockWait bounds wait_ms.
	maxLockWait = 24 * time.Hour
)

// Locks configures the lock methods.
type Locks struct {
	Host  *lock.Host
	Store lock.Store
	// Owner is this host's name at the store. A peer's locks belong to Owner/UID.
	Owner   string
	Timeout time.Duration // of one call of the store
}

// lockCall is the request of a lock method.
type lockCall struct {
	lock.Request
	hold bool // for as long as the connection lasts
}

// lockOptions are the options that lock methods have.
var lockOptions = map[string]func(*lockCall, *responder) error{
	"ttl_ms": func(call *lockCall, d *responder) (err error) {
		if call.TTLMS, err = d.req.Int64(); err == nil && call.TTLMS == 0 {
			err = wire.Errorf(wire.CodeInvalidParams, "ttl_ms of 0 is no term")
		}
		return err
	},
	"request_id": func(call *lockCall, d *responder) (err error) { call.RequestID, err = d.text(); return err },
	"lease_id":   func(call *lockCall, d *responder) (err error) { call.LeaseID, err = d.text(); return err },
	"wait_ms": func(call *lockCall, d *responder) (err error) {
		call.Wait, err = d.milliseconds("wait_ms", maxLockWait)
		return err
	},
	"hold": func(call *lockCall, d *responder) error {
		text, err := d.text()
		if err == nil && text != "connection" {
			err = wire.Errorf(wire.CodeInvalidParams, "there is no hold %s; there is connection", wire.Excerpt([]byte(text)))
		}
		call.hold = true
		return err
	},
}

// lockCall reads the request of a lock method that knows the options.
func (s *Server) lockCall(d *responder, op lock.Op, options ...string) (lockCall, error) {
	call := lockCall{Request: lock.Request{Op: op, Tenant: localTenant}}
	switch {
	case s.cfg.Locks == nil:
		return call, noStore()
	case d.conn == nil:
		return call, errHeavy // the fast path knows no peers
	case d.req.NumParams() == 0:
		return call, wire.Errorf(wire.CodeInvalidParams, "%s needs a key", d.req.Method)
	}
	if d.account.user.uid == unknownUID {
		return call, wire.Errorf(wire.CodePermissionDenied, "the peer's credentials cannot be read")
	}
	if peer := d.conn.account.peer; peer != nil && peer.UnmappedUID {
		s.refusalLog.Warn("lock refused: the daemon's user namespace does not map the peer's user", zap.Int("pid", peer.PID), zap.Uint32("uid", peer.UID))
		return call, wire.Errorf(wire.CodePermissionDenied, "user %d stands for every user that the daemon's user namespace does not map, "+
			"and a lock belongs to one user: map the user, or run the daemon outside of the namespace", peer.UID)
	}
	var err error
	call.Owner = fmt.Sprintf("%s/%d", s.cfg.Locks.Owner, d.account.user.uid)
	if op == lock.Acquire {
		call.TTLMS = defaultLockTTL.Milliseconds()
	}
	if call.Key, err = d.text(); err != nil {
		return call, err
	}
	return call, d.eachOption(options, func(name string) error { return lockOptions[name](&call, d) })
}

func (s *Server) lockAcquire(_ context.Context, d *responder) error {
	call, err := s.lockCall(d, lock.Acquire, "ttl_ms", "wait_ms", "request_id", "hold")
	if err != nil {
		return err
	}
	return d.aside(func(ctx context.Context) (any, error) {
		ctx, done := s.whileServing(ctx)
		defer done()
		began := s.elapsed()
		s.keyedStores.LockWaiters.Inc()
		answer, err := s.acquire(ctx, d.conn, call)
		s.keyedStores.LockWaiters.Dec()
		if s.countLock(lock.Acquire.String(), err); err == nil {
			s.keyedStores.LockWait.Observe(s.elapsed()-began, 1)
		}
		if held, ok := errors.AsType[*lock.HeldError](err); ok && held.Owner == call.Owner {
			return nil, heldError("this user holds the lock already, by another request", held)
		}
		return answer, lockFailure(err)
	})
}

func (s *Server) acquire(ctx context.Context, c *conn, call lockCall) (any, error) {
	if call.hold {
		return s.hold(ctx, c, call.Request)
	}
	l, err := s.cfg.Locks.Host.Acquire(ctx, call.Request)
	if err == nil && !l.Repeated && hungUp(c.net) {
		// Its peer may have made sure by another connection that it holds
		// nothing, before this request was so much as read.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Locks.Timeout)
		defer cancel()
		_, _ = s.cfg.Locks.Host.Change(ctx, lock.Request{
			Op: lock.Release, Tenant: call.Tenant, Key: call.Key, Owner: call.Owner, LeaseID: l.LeaseID,
		})
		err = errHungUp
	}
	return l.Answer(), err
}

// lockChange makes the method of an operation on a lock that is held.
func lockChange(op lock.Op, options ...string) func(*Server, context.Context, *responder) error {
	return func(s *Server, _ context.Context, d *responder) error {
		call, err := s.lockCall(d, op, options...)
		if err != nil {
			return err
		}
		return d.asideUpkeep(slowWork(func(ctx context.Context) (any, error) {
			l, err := s.cfg.Locks.Host.Change(ctx, call.Request)
			if err == nil && op == lock.Release {
				s.released(l, d.conn)
			}
			s.countLock(op.String(), err)
			return l.Answer(), lockFailure(err)
		}).within(s.cfg.Locks.Timeout))
	}
}

func (s *Server) lockGet(_ context.Context, d *responder) error {
	call, err := s.lockCall(d, 0)
	if err != nil {
		return err
	}
	return d.asideUpkeep(slowWork(func(ctx context.Context) (any, error) {
		l, err := s.cfg.Locks.Store.Get(ctx, call.Tenant, call.Key)
		s.countLock("get", err)
		return l.Answer(), lockFailure(err)
	}).within(s.cfg.Locks.Timeout))
}

// lockPage is the answer of Lock.List.
type lockPage struct {
	Locks []lock.Answer `json:"locks"` // in the order of their keys' bytes
}

// lockList shows live locks. A page with fewer than limit is the last.
func (s *Server) lockList(_ context.Context, d *responder) error {
	if s.cfg.Locks == nil {
		return noStore()
	}
	after, limit := "", int64(lock.MaxList)
	err := d.eachOption([]string{"after", "limit"}, func(name string) (err error) {
		if name == "after" {
			after, err = d.text()
		} else {
			limit, err = d.req.Int64()
		}
		return err
	})
	if err == nil {
		err = lock.CheckPage(localTenant, after, int(limit))
	}
	if err != nil {
		return err
	}
	return d.asideLong(s.cfg.Locks.Timeout, func(ctx context.Context) (any, error) {
		leases, err := s.cfg.Locks.Store.List(ctx, localTenant, after, int(limit))
		s.countLock("list", err)
		page := lockPage{Locks: make([]lock.Answer, len(leases))}
		for i, l := range leases {
			page.Locks[i] = l.Answer()
		}
		return page, lockFailure(err)
	})
}

func (s *Server) lockWatch(_ context.Context, d *responder) error {
	call, err := s.lockCall(d, 0, "lease_id")
	if err != nil {
		return err
	}
	return d.aside(func(context.Context) (any, error) {
		l, err := s.watch(d.conn, call.Request)
		return l.Answer(), lockFailure(err)
	})
}

// countLock counts what became of a request for a lock.
func (s *Server) countLock(op string, err error) {
	result := lock.Outcome(err)
	if errors.Is(err, errShuttingDown) || errors.Is(err, errHungUp) {
		result = "canceled"
	}
	s.keyedStores.Lock(op, result)
}

// lockFailure tells a store's failures from its answers.
func lockFailure(err error) error {
	if lock.IsAnswer(err) || errors.Is(err, lock.ErrClosed) || errors.Is(err, lock.ErrOverloaded) ||
		errors.Is(err, errShuttingDown) || errors.Is(err, errHungUp) {
		return err
	}
	return storeError{err}
}

func heldError(words string, held *lock.HeldError) *wire.Error {
	until := lock.Lease{ExpiresMS: held.ExpiresMS}.Answer().ExpiresAt
	return wire.Errorf(wire.CodeLockHeld, "%s", words).
		With("retry_after_ms", held.RemainingMS).With("owner", held.Owner).With("expires_at", until)
}

// lockError gives the code of an error of a lock method.
func lockError(err error) *wire.Error {
	var held *lock.HeldError
	var fenced *lock.FencedError
	switch {
	case errors.As(err, &held):
		return heldError("somebody else holds the lock", held)
	case errors.As(err, &fenced):
		return wire.Errorf(wire.CodeLockFenced, "%s", fenced.Reason).With("until_ms", fenced.UntilMS)
	case errors.Is(err, lock.ErrRequestReused):
		return wire.Errorf(wire.CodeRequestIDReused, "%v", err)
	case errors.Is(err, lock.ErrNotOwned):
		return wire.Errorf(wire.CodeLockNotOwned, "%v", err)
	case errors.Is(err, lock.ErrExpired):
		return wire.Errorf(wire.CodeLockExpired, "%v", err)
	case errors.Is(err, lock.ErrNotFound):
		return wire.Errorf(wire.CodeLockNotFound, "nobody has held the lock lately")
	case errors.Is(err, lock.ErrInvalid):
		return wire.Errorf(wire.CodeInvalidParams, "%v", err)
	case errors.Is(err, lock.ErrOverloaded):
		return wire.Errorf(wire.CodeOverloaded, "%v", err)
	}
	return nil
}
