// Package kazahanatest has a fake daemon for the unit tests of programs that use IDs: it
// runs in the test's process, gives the same answers in every run, and can fail on demand.
//
//	fake := kazahanatest.New()
//	client := fake.Client()
//	defer client.Close()
//
// The clients are real; only the other end of their connections is fake.
package kazahanatest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/internal/wire"
)

// MachineID is in all IDs of a Fake.
const MachineID = 1

// Start is the time of a Fake's first IDs.
var Start = time.UnixMilli(1_800_000_000_000).UTC()

// Fake is a daemon with one service, of the default layout. Its clock stands
// still unless Advance moves it: it gives 256 IDs of its time, and then of the
// milliseconds that follow. Sequences count from 1, locks hold until they are
// released or lost, and nothing ever waits: a lock that is held is LOCK_HELD. Actors
// live on its one host, and are activated by the Executors of its clients.
type Fake struct {
	mu        sync.Mutex
	now       time.Time
	last      kazahana.ID
	fallback  bool
	codec     kazahana.ExternalCodec
	calls     []string
	failures  []failure
	stopped   bool
	conns     map[*conn]struct{}
	sequences map[string]int64
	requests  map[string][]int64
	locks     map[string]*lock
	tokens    int64
	uuids     int
	placement
}

// failure is what some calls fail with.
type failure struct {
	method string // "" = any
	times  int    // < 0: without end
	err    *wire.Error
}

type lock struct {
	holder *conn
	answer map[string]any
}

// conn is the Fake's end of a client's connection.
type conn struct {
	*wire.ServerConn
	pipe  net.Conn
	gone  chan struct{} // closed by leave
	place               // guarded by the Fake's mu

	mu    sync.Mutex
	queue []func() error // pending writes; the first is under way
}

// New returns a Fake.
func New() *Fake {
	return &Fake{
		now: Start, conns: map[*conn]struct{}{}, sequences: map[string]int64{}, requests: map[string][]int64{}, locks: map[string]*lock{},
		placement: newPlacement(),
	}
}

// Client returns a client of the Fake, which must be closed. It panics if the
// options are wrong.
func (f *Fake) Client(opts ...kazahana.Option) *kazahana.Client {
	c, err := kazahana.New(append(slices.Clone(opts), kazahana.WithDialer(f.Dial))...)
	if err != nil {
		panic(err)
	}
	return c
}

// Dial connects to the Fake, for kazahana.WithDialer.
func (f *Fake) Dial(context.Context) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return nil, errors.New("the fake is stopped")
	}
	near, far := net.Pipe()
	c := &conn{pipe: far, ServerConn: wire.NewServerConn(far, far), gone: make(chan struct{})}
	f.conns[c] = struct{}{}
	go f.serve(c)
	return near, nil
}

// Advance moves the clock.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

// SetFallback makes the IDs fallback IDs, as from a daemon without a lease, or not.
func (f *Fake) SetFallback(fallback bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fallback = fallback
}

// SetSecret sets the secret for external IDs.
func (f *Fake) SetSecret(secret string) error {
	codec, err := kazahana.NewExternalCodec(secret, "default")
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.codec = codec
	return nil
}

// Fail makes the next calls fail: times of them (all, if times is negative), of the method
// with that name on the wire, or of any method if it is empty. Earlier calls of Fail are
// used up first. The client turns the error into the type of its code, and repeats the call
// after ErrShuttingDown.
func (f *Fake) Fail(method string, times int, err *kazahana.Error) {
	w := wire.Errorf(wire.Code(err.Code), "%s", err.Message)
	for key, value := range err.Details {
		w.With(key, value)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, failure{method, times, w})
}

// Recover ends the effects of Fail.
func (f *Fake) Recover() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = nil
}

// Stop cuts all connections, and refuses new ones until Start is called, like a daemon that
// was killed. Locks are released.
func (f *Fake) Stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	for c := range f.conns {
		_ = c.pipe.Close()
	}
}

// Start accepts connections again.
func (f *Fake) Start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = false
}

// LoseLock takes a lock from its holder, for a reason: expired, taken_over, refused or
// released. It reports whether the lock was held.
func (f *Fake) LoseLock(key, reason string) bool {
	f.mu.Lock()
	l := f.locks[key]
	delete(f.locks, key)
	f.mu.Unlock()
	if l == nil {
		return false
	}
	notice := maps.Clone(l.answer)
	notice["state"], notice["expires_in_ms"], notice["reason"] = "EXPIRED", 0, reason
	l.holder.send(func() error { return l.holder.Notify("Lock.Lost", notice) })
	return true
}

// Calls returns the methods that were called, in order, by their names on the wire.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// serve answers a client until it goes.
func (f *Fake) serve(c *conn) {
	defer f.leave(c)
	var r wire.Request
	for c.Read(&r) == nil {
		switch r.Type {
		case wire.TypeResponse:
			f.answered(c, &r)
		case wire.TypeRequest:
			id := r.ID
			result, err := f.handle(c, &r)
			if wait, ok := result.(later); ok {
				go func() { c.answer(id, wait) }()
			} else {
				c.answer(id, func() (any, error) { return result, err })
			}
		}
	}
}

// later waits for an answer.
type later = func() (any, error)

func (c *conn) answer(id uint32, wait later) {
	result, err := wait()
	c.send(func() error {
		var refusal *wire.Error
		switch {
		case err == nil:
			err = c.ReplyAny(id, result)
		case errors.As(err, &refusal):
			c.ReplyError(id, refusal)
			err = nil
		}
		if err != nil {
			c.ReplyError(id, wire.Errorf(wire.CodeInvalidParams, "%v", err))
		}
		return nil
	})
}

// send queues a write. It does not wait for the client, which may be calling the Fake.
func (c *conn) send(write func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, write)
	if len(c.queue) == 1 {
		go c.writeAll()
	}
}

func (c *conn) writeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		write := c.queue[0]
		c.mu.Unlock()
		_ = write()
		_ = c.Flush() // an error means that the client has gone
		c.mu.Lock()
		c.queue = c.queue[1:]
	}
}

// leave releases what the connection held.
func (f *Fake) leave(c *conn) {
	_ = c.pipe.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
	close(c.gone)
	f.endAll(c)
	for key, l := range f.locks {
		if l.holder == c {
			delete(f.locks, key)
		}
	}
}

func (f *Fake) handle(c *conn, r *wire.Request) (any, error) {
	method := string(r.Method)
	var params []any
	for r.Next() != wire.KindNone {
		var p any
		if err := r.Decode(&p); err != nil {
			return nil, err
		}
		params = append(params, p)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, method)
	for i := range f.failures {
		one := &f.failures[i]
		if one.times != 0 && (one.method == "" || one.method == method) {
			one.times--
			return nil, one.err
		}
	}
	answer, ok := methods[method]
	if !ok {
		return nil, wire.Errorf(wire.CodeUnknownMethod, "there is no method %q", method)
	}
	q := query{Fake: f, conn: c, options: map[string]any{}}
	if n := len(params); n > 0 {
		if options, ok := params[n-1].(map[string]any); ok {
			q.options, params = options, params[:n-1]
		}
	}
	q.params = params
	return answer(q)
}

func invalid(format string, args ...any) error {
	return wire.Errorf(wire.CodeInvalidParams, "%s", fmt.Sprintf(format, args...))
}
