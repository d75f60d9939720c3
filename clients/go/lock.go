package kazahana

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/clients/go/internal/boottime"
	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

// DefaultLockTTL is the default term of a lock.
const DefaultLockTTL = 30 * time.Second

const (
	// A held lock is checked this often in its term, and sooner after a failed check.
	checkPart = 3
	retryPart = 10
)

// LockOptions are the options of Lock. The zero value has the defaults.
type LockOptions struct {
	// TTL is how long others wait after a crash of the daemon or of the host: 100 ms to
	// 24 h. 0 means DefaultLockTTL. The work may take longer: the daemon renews the lock.
	TTL time.Duration
	// Wait is how long to wait while another owner holds the lock, up to 24 h, in
	// addition to the Client's timeout. 0: LOCK_HELD at once.
	Wait time.Duration
}

// A Lock is held by this process until Release, or until Lost. The daemon renews it while
// the Lock's own connection lives, and releases it when that closes, also at the end of the
// process.
type Lock struct {
	lease   lease
	conn    *conn  // used by one goroutine at a time: Lock, watch, and then Release
	told    string // by the daemon: the reason of the loss
	ttl     time.Duration
	until   time.Duration   // on a clock that counts suspend
	holding context.Context // ends with Release
	stop    context.CancelFunc
	watched chan struct{}   // closed when watch has returned
	lost    context.Context // ends with the loss, which is its cause
	end     context.CancelCauseFunc

	released atomic.Bool
}

// lease is a lock in an answer.
type lease struct {
	Key         string `json:"lock_key"`
	LeaseID     string `json:"lease_id"`
	OwnerID     string `json:"owner_id"`
	Token       int64  `json:"fencing_token"`
	State       string `json:"state"`
	ExpiresInMS int64  `json:"expires_in_ms"`
	Reason      string `json:"reason"` // of a loss
}

// Lock takes a lock. If another owner has it, the error is a *LockHeldError.
//
// Closing the Client does not release the lock. The resource that the lock protects should
// refuse tokens smaller than the greatest it has seen, since no lock service can keep a
// process that was paused from going on: see docs/locks.md.
func (c *Client) Lock(ctx context.Context, key string, opts LockOptions) (*Lock, error) {
	if opts.TTL == 0 {
		opts.TTL = DefaultLockTTL
	}
	if opts.TTL%time.Millisecond != 0 || opts.Wait < 0 {
		return nil, invalid(ErrInvalidParams, "a term of %v and a wait of %v: both must be whole milliseconds, and the wait not negative", opts.TTL, opts.Wait)
	}
	l := &Lock{ttl: opts.TTL, watched: make(chan struct{})}
	l.holding, l.stop = context.WithCancel(context.Background())
	l.lost, l.end = context.WithCancelCause(context.Background())
	if err := l.acquire(ctx, c, key, opts.Wait); err != nil {
		l.stop()
		return nil, err
	}
	go l.watch()
	return l, nil
}

// acquire takes the lock on a connection of its own.
func (l *Lock) acquire(ctx context.Context, c *Client, key string, wait time.Duration) error {
	began, requestID, renewed := boottime.Now(), newRequestID(), false
	return c.Open(ctx, wait+c.timeout, func(ctx context.Context, nc net.Conn) error {
		l.conn, l.told = newConn(nc), ""
		l.conn.notice = l.note
		left := max(wait-(boottime.Now()-began), 0)
		err := l.call(ctx, "Lock.Acquire", &l.lease, key, map[string]any{
			"ttl_ms": l.ttl.Milliseconds(), "wait_ms": left.Milliseconds(), "request_id": requestID, "hold": "connection",
		})
		if !renewed && errors.Is(err, ErrRequestIDReused) {
			// As a rule, an earlier attempt was granted, and released with its connection.
			requestID, renewed = newRequestID(), true
			return again{err}
		}
		if err != nil {
			return err
		}
		if l.lease.LeaseID == "" || l.lease.Token <= 0 {
			return protocolError("the answer to Lock.Acquire has no lease_id or fencing_token")
		}
		// The acquire may have waited: this answer has the remaining time.
		if err = l.ask(ctx, "Lock.Watch", map[string]any{"lease_id": l.lease.LeaseID}); isGone(err) {
			return again{err}
		}
		return err
	})
}

// note takes the notice that the lock is lost.
func (l *Lock) note(method string, params []any) {
	var lost lease
	if method == "Lock.Lost" && len(params) > 0 && msgpack.Assign(params[0], &lost) == nil && lost.LeaseID == l.lease.LeaseID {
		l.told = cmp.Or(lost.Reason, "lost")
	}
}

// call calls a method on the lock's connection, as long as the context allows.
func (l *Lock) call(ctx context.Context, method string, result any, params ...any) error {
	deadline, _ := ctx.Deadline()
	value, err := exchange(ctx, l.conn, deadline, request{method: method, params: params}, readValue)
	if err != nil {
		return err
	}
	return assign(value, result)
}

// newRequestID returns 128 random bits.
func newRequestID() string {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		panic("kazahana: the system has no random numbers: " + err.Error())
	}
	return hex.EncodeToString(id[:])
}

// ask calls a method that answers with the lock, and notes the earliest end of the lock,
// counted from before the request.
func (l *Lock) ask(ctx context.Context, method string, options ...any) error {
	sent := boottime.Now()
	var now lease
	if err := l.call(ctx, method, &now, append([]any{l.lease.Key}, options...)...); err != nil {
		return err
	}
	if now.LeaseID != l.lease.LeaseID || now.State != "ACTIVE" {
		return invalid(ErrLockNotOwned, "the lock is %s by %s", now.State, now.OwnerID)
	}
	l.until = sent + time.Duration(now.ExpiresInMS)*time.Millisecond
	return nil
}

// isGone reports whether the error means that the lock is lost.
func isGone(err error) bool {
	return errors.Is(err, ErrLockNotOwned) || errors.Is(err, ErrLockExpired) || errors.Is(err, ErrLockNotFound)
}

// Key returns the lock's name.
func (l *Lock) Key() string { return l.lease.Key }

// Token returns the fencing token: greater than every earlier holder's.
func (l *Lock) Token() int64 { return l.lease.Token }

// LeaseID names this holding of the lock.
func (l *Lock) LeaseID() string { return l.lease.LeaseID }

// OwnerID is the owner of the lock, as others see it.
func (l *Lock) OwnerID() string { return l.lease.OwnerID }

// Lost returns a channel that is closed when the lock can no longer be relied upon. Err then
// says why. A release is not a loss. Release a lost lock too, to free its connection.
func (l *Lock) Lost() <-chan struct{} { return l.lost.Done() }

// Err returns a *LockLostError once the lock is lost, else nil.
func (l *Lock) Err() error { return context.Cause(l.lost) }

// Release gives the lock back. If it was lost before, the error is the *LockLostError. Only
// the first call has an effect.
func (l *Lock) Release(ctx context.Context) error {
	if l.released.Swap(true) {
		return nil
	}
	l.stop()
	<-l.watched
	// Even if the call fails, the end of the connection releases the lock.
	defer l.conn.nc.Close()
	if err := l.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, max(l.left(), time.Second))
	defer cancel()
	err := l.call(ctx, "Lock.Release", nil, l.lease.Key, map[string]any{"lease_id": l.lease.LeaseID, "request_id": newRequestID()})
	if isGone(err) {
		return &LockLostError{Key: l.lease.Key, Reason: "expired", Err: err}
	}
	return nil
}

// watch listens to the daemon, and checks the lock, until it is released or lost.
func (l *Lock) watch() {
	defer close(l.watched)
	for next := l.after(l.ttl / checkPart); l.holding.Err() == nil; {
		if l.told != "" {
			l.lose(l.told, nil)
			return
		}
		switch err := l.conn.listen(l.holding, next); {
		case err == errExpired && l.holding.Err() == nil:
			pause, err := l.check()
			if err != nil {
				l.lose("expired", err)
				return
			}
			next = l.after(pause)
		case err != nil && l.holding.Err() == nil:
			l.lose("disconnected", err)
			return
		}
	}
}

// listen waits for a message that no call waits for, and passes it.
func (c *conn) listen(ctx context.Context, deadline time.Time) error {
	stop, err := c.limit(ctx, deadline)
	if err != nil {
		return err
	}
	defer c.settle(stop)
	kind, _, err := c.head()
	if err == nil {
		c.pass(kind)
	}
	return err
}

// after is the time of the next check: after the pause, but not after the end of the lock.
func (l *Lock) after(pause time.Duration) time.Time { return time.Now().Add(min(pause, l.left())) }

// check asks whether the lock is still held: the daemon may hang, and this process may have
// been stopped. It returns how soon to check again.
func (l *Lock) check() (time.Duration, error) {
	// After a stop past the end, still ask whether the daemon has renewed the lock.
	left := max(l.left(), l.ttl/retryPart)
	ctx, cancel := context.WithTimeout(l.holding, min(left, l.ttl/checkPart))
	defer cancel()
	switch err := l.ask(ctx, "Lock.Get"); {
	case err == nil:
		return l.ttl / checkPart, nil
	case isGone(err), l.left() <= 0 && l.holding.Err() == nil: // Release ends a check without an answer
		return 0, fmt.Errorf("the daemon does not confirm it: %w", err)
	}
	return l.ttl / retryPart, nil
}

// left is how long the daemon has confirmed the lock for.
func (l *Lock) left() time.Duration { return l.until - boottime.Now() }

func (l *Lock) lose(reason string, why error) { l.end(&LockLostError{l.lease.Key, reason, why}) }
