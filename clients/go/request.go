package kazahana

import (
	"context"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

// request is a call of a method.
type request struct {
	method string
	params []any
	ids    map[string]any // if not nil, the options of NextID or NextIDs
	read   reading        // nil: any value
}

// reading reads a result.
type reading func(*msgpack.Reader) (value any, err error)

// Remaining, as a parameter of a call, stands for what the function returns for the time
// that is left, at each attempt.
type Remaining func(left time.Duration) any

// The daemon's time limit is shorter than the call's by this part, and by this much at
// most: the daemon's error says more than a timeout here.
const (
	marginPart = 20
	maxMargin  = 100 * time.Millisecond
)

// maxDaemonWait is the daemon's maximum of timeout_ms.
const maxDaemonWait = time.Hour

// DaemonTime returns how long the daemon may take, so that its answer comes in the time
// that is left.
func DaemonTime(left time.Duration) time.Duration {
	return max(left-min(left/marginPart, maxMargin), 0)
}

// msgidAt is where the msgid of an encoded request belongs.
const msgidAt = 3

// encode leaves the msgid out.
func (r request) encode(left time.Duration) (b []byte, err error) {
	b = append(make([]byte, 0, 96), 0x94, 0, 0xce, 0, 0, 0, 0)
	b = msgpack.AppendString(b, r.method)
	size := len(r.params)
	if r.ids != nil {
		size++
	}
	b = msgpack.AppendArray(b, size)
	for i, p := range r.params {
		if rest, ok := p.(Remaining); ok {
			p = rest(left)
		}
		if b, err = msgpack.Append(b, p); err != nil {
			return nil, invalid(ErrInvalidParams, "parameter %d of %s: %v", i+1, r.method, err)
		}
	}
	if r.ids != nil {
		b = msgpack.AppendMap(b, len(r.ids)+1)
		for name, value := range r.ids {
			b, _ = msgpack.Append(msgpack.AppendString(b, name), value) // a string or a bool
		}
		b = msgpack.AppendInt(msgpack.AppendString(b, "timeout_ms"), min(DaemonTime(left), maxDaemonWait).Milliseconds())
	}
	if len(b) > maxRequest {
		return nil, invalid(ErrInvalidParams, "a request of %d bytes: at most %d are allowed", len(b), maxRequest)
	}
	return b, nil
}

// waiter is a caller that waits until a deadline: as a rule for the answer to a call, over all
// its attempts.
type waiter struct {
	ctx             context.Context
	began, deadline time.Time
	timer           *time.Timer // of the deadline: only the last wait lets it fire
	read            reading
	done            chan struct{} // has room for one: value and err are set
	value           any
	err             error
}

func newWaiter(ctx context.Context, timeout time.Duration) *waiter {
	w := &waiter{done: make(chan struct{}, 1), timer: time.NewTimer(MaxTimeout)}
	w.begin(ctx, timeout)
	return w
}

func (w *waiter) begin(ctx context.Context, timeout time.Duration) {
	w.ctx, w.began = ctx, time.Now()
	w.deadline = w.began.Add(timeout)
	if end, ok := ctx.Deadline(); ok && end.Before(w.deadline) {
		w.deadline = end
	}
	w.timer.Reset(w.left())
}

func (w *waiter) left() time.Duration { return time.Until(w.deadline) }
func (w *waiter) isOver() bool        { return w.ctx.Err() != nil || w.left() <= 0 }

// wait waits for done, and reports whether it came in time.
func (w *waiter) wait(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-w.ctx.Done():
	case <-w.timer.C:
	}
	return false
}

func (w *waiter) answer(value any, err error) {
	w.value, w.err = value, err
	w.done <- struct{}{}
}

// end returns the error of a call that is out of time: the last attempt's, if there is one.
func (w *waiter) end(what string, last error) error {
	switch {
	case w.ctx.Err() == context.Canceled:
		return fmt.Errorf("kazahana: %s: %w", what, context.Canceled)
	case last != nil:
		return last
	}
	e := &Error{Code: ErrTimeout, Message: "no answer to " + what + " from the daemon"}
	return &RequestTimeoutError{Waited: time.Since(w.began), Err: e}
}
