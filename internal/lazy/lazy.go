// Package lazy opens things at their first use. A thing that cannot be opened
// now is tried again at the next use, and a disk or a server that does not answer holds
// no caller up: each caller waits as long as its own context lets it, and a caller
// without a deadline that begins an attempt for attemptTimeout.
package lazy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrClosed: the value was closed.
var ErrClosed = errors.New("closed")

const (
	// lastWord is how long a caller still listens after its deadline: the opening
	// attempt ends at the same time, and its error names the cause of the wait.
	lastWord = 50 * time.Millisecond
	// closeWait is how long Close waits for an attempt to open.
	closeWait = time.Second
	// attemptTimeout is how long an attempt has if its caller has no deadline.
	attemptTimeout = time.Minute
)

// Value is opened at its first use. Its methods may be called by many goroutines.
type Value[T any] struct {
	what  string // for people
	open  func(context.Context) (T, error)
	close func(T) error

	mu      sync.Mutex
	attempt *attempt[T] // the one under way, or the successful one; guarded by mu, as is closed
	closed  bool
}

// attempt is one try to open. It runs in a goroutine of its own, since a system
// call that hangs cannot be ended.
type attempt[T any] struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when value and err are final
	value  T
	err    error
}

// New returns a value that open opens and end closes. what names the value in
// errors.
func New[T any](what string, open func(context.Context) (T, error), end func(T) error) *Value[T] {
	return &Value[T]{what: what, open: open, close: end}
}

// Opened returns a value that is open. what names it in errors.
func Opened[T any](what string, value T, end func(T) error) *Value[T] {
	a := &attempt[T]{cancel: func() {}, done: make(chan struct{}), value: value}
	close(a.done)
	return &Value[T]{what: what, close: end, attempt: a}
}

// Get returns the value, and opens it where it is not open. Callers that come
// while one opens wait for that.
func (v *Value[T]) Get(ctx context.Context) (T, error) {
	if value, ok := v.Ready(); ok {
		return value, nil
	}
	for {
		a, own, err := v.join(ctx)
		if err != nil {
			var none T
			return none, err
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			moment := time.NewTimer(lastWord)
			defer moment.Stop()
			select {
			case <-a.done:
			case <-moment.C:
				var none T
				return none, fmt.Errorf("%s: the disk or the server does not answer: %w", v.what, ctx.Err())
			}
		}
		// The time of the caller who began was up, and not this one's.
		if late := errors.Is(a.err, context.DeadlineExceeded); late && !own && ctx.Err() == nil {
			continue
		}
		return a.value, a.err
	}
}

// Ready returns the value if it is open.
func (v *Value[T]) Ready() (value T, ok bool) {
	v.mu.Lock()
	a, closed := v.attempt, v.closed
	v.mu.Unlock()
	if a == nil || closed {
		return value, false
	}
	select {
	case <-a.done:
		return a.value, a.err == nil
	default:
		return value, false
	}
}

// join returns the attempt under way, and begins one where there is none: own.
func (v *Value[T]) join(ctx context.Context) (a *attempt[T], own bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, false, fmt.Errorf("%s: %w", v.what, ErrClosed)
	}
	if v.attempt != nil {
		return v.attempt, false, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	// It has as long as the caller who began, and goes on if that one is gone:
	// others may be waiting, and not for ever behind a caller without a deadline.
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(attemptTimeout)
	}
	opening, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	a = &attempt[T]{cancel: cancel, done: make(chan struct{})}
	v.attempt = a
	go v.run(opening, a)
	return a, true, nil
}

func (v *Value[T]) run(ctx context.Context, a *attempt[T]) {
	defer a.cancel()
	a.value, a.err = v.open(ctx)
	if a.err != nil {
		v.mu.Lock()
		v.attempt = nil
		v.mu.Unlock()
	}
	close(a.done)
}

// Close ends the use of the value, and an attempt to open it. Where its disk or server
// does not answer, Close waits for a moment and returns an error: the value is closed
// once it is open.
func (v *Value[T]) Close() error {
	v.mu.Lock()
	a, again := v.attempt, v.closed
	v.closed = true
	v.mu.Unlock()
	if a == nil || again {
		return nil
	}
	a.cancel()
	closed := make(chan error, 1)
	go func() {
		<-a.done
		var err error
		if a.err == nil {
			err = v.close(a.value)
		}
		closed <- err
	}()
	// The value's own Close takes as long as it takes.
	wait := time.NewTimer(closeWait)
	defer wait.Stop()
	select {
	case <-a.done:
		return <-closed
	case <-wait.C:
		return fmt.Errorf("%s: the disk or the server does not answer; what is being opened is closed once it is open", v.what)
	}
}
