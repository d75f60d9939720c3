package kazahana

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

// request is a call of a method.
type request struct {
	method string
	count  int // if not 0, the first parameter
	params []any
	ids    *callOptions // if not nil, the last parameter
	format string       // of IDs
}

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

func (r *request) encode(id uint32, l limit) (b []byte, err error) {
	b = make([]byte, 0, 96)
	b = binary.BigEndian.AppendUint32(append(b, 0x94, 0, 0xce), id)
	b = msgpack.AppendString(b, r.method)
	n := len(r.params)
	if r.count != 0 {
		n++
	}
	if r.ids != nil {
		n++
	}
	b = msgpack.AppendArray(b, n)
	if r.count != 0 {
		b = msgpack.AppendInt(b, int64(r.count))
	}
	for i, p := range r.params {
		if rest, ok := p.(Remaining); ok {
			p = rest(time.Until(l.deadline))
		}
		if b, err = msgpack.Append(b, p); err != nil {
			return nil, invalid(ErrInvalidParams, "parameter %d of %s: %v", i+1, r.method, err)
		}
	}
	if r.ids != nil {
		b = r.ids.append(b, r.format, min(DaemonTime(time.Until(l.deadline)), maxDaemonWait))
	}
	if len(b) > maxRequest {
		return nil, invalid(ErrInvalidParams, "a request of %d bytes: at most %d are allowed", len(b), maxRequest)
	}
	return b, nil
}

// append writes the options of NextID and NextIDs.
func (o *callOptions) append(b []byte, format string, wait time.Duration) []byte {
	n := 1
	for _, there := range [...]bool{o.service != "", format != "", o.regularOnly} {
		if there {
			n++
		}
	}
	b = msgpack.AppendString(msgpack.AppendMap(b, n), "timeout_ms")
	b = msgpack.AppendInt(b, wait.Milliseconds())
	if o.service != "" {
		b = msgpack.AppendString(msgpack.AppendString(b, "service"), o.service)
	}
	if format != "" {
		b = msgpack.AppendString(msgpack.AppendString(b, "format"), format)
	}
	if o.regularOnly {
		b = msgpack.AppendBool(msgpack.AppendString(b, "regular_only"), true)
	}
	return b
}

// limit is how long a call may take, over all its attempts.
type limit struct {
	ctx             context.Context
	began, deadline time.Time
}

func newLimit(ctx context.Context, timeout time.Duration) limit {
	now := time.Now()
	l := limit{ctx, now, now.Add(timeout)}
	if d, ok := ctx.Deadline(); ok && d.Before(l.deadline) {
		l.deadline = d
	}
	return l
}

// wait waits for done, and reports whether it came in time.
func (l limit) wait(done <-chan struct{}) bool {
	timer := time.NewTimer(time.Until(l.deadline))
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-l.ctx.Done():
	case <-timer.C:
	}
	return false
}

func (l limit) over() bool { return l.ctx.Err() != nil || !time.Now().Before(l.deadline) }

// end is the error of a call whose time is up.
func (l limit) end(what string) error {
	if l.ctx.Err() == context.Canceled {
		return fmt.Errorf("kazahana: %s: %w", what, context.Canceled)
	}
	e := &Error{Code: ErrTimeout, Message: "no answer to " + what + " from the daemon"}
	return &RequestTimeoutError{Waited: time.Since(l.began), Err: e}
}
