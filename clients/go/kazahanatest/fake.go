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
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/twoway"
)

// MachineID is in all IDs of a Fake.
const MachineID = 1

// Start is the time of a Fake's first IDs.
var Start = time.UnixMilli(1_800_000_000_000).UTC()

// Fake is a daemon with one service, of the default layout. Its clock stands
// still unless Advance moves it: it gives 256 IDs of its time, and then of the
// milliseconds that follow. Sequences count from 1, locks hold until they are
// released or lost, and nothing ever waits: a lock that is held is LOCK_HELD.
type Fake struct {
	mu        sync.Mutex
	now       time.Time
	lastMS    int64 // the millisecond of the last ID, by the layout
	given     int64 // the IDs of that millisecond
	fallback  bool
	codec     kazahana.ExternalCodec
	calls     []string
	failures  []failure
	stopped   bool
	conns     map[*Conn]net.Conn // and the pipe of each
	sequences map[string]int64
	requests  map[string][]int64
	locks     map[string]*lock
	tokens    int64
	uuids     int
	handlers  map[string]func(Request) (any, error)
}

// failure is what some calls fail with.
type failure struct {
	method string // "" = any
	times  int    // < 0: without end
	err    error
}

type lock struct {
	holder *Conn
	answer map[string]any // replaced, and never changed: it may be on its way
}

// A Conn is the Fake's end of a client's connection. It can Call and Notify the client.
type Conn = twoway.Conn

// A Request is a call of a client, for functions of Handle.
type Request struct {
	Conn    *Conn          // a function may Call and Close it only in a Later
	Params  []any          // without the options
	Options map[string]any // the last parameter, if it is a map
}

// Later is a result that is waited for: the connection answers other requests meanwhile.
type Later = func() (any, error)

// New returns a Fake.
func New() *Fake {
	return &Fake{
		now: Start, conns: map[*Conn]net.Conn{}, sequences: map[string]int64{}, requests: map[string][]int64{}, locks: map[string]*lock{},
		handlers: map[string]func(Request) (any, error){},
	}
}

func (f *Fake) locked(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// Handle makes the function answer a method, in place of the Fake's own answer if it has one. Its
// error is an answer, as Fail's is; its result may be a Later.
func (f *Fake) Handle(method string, handle func(Request) (any, error)) {
	f.locked(func() { f.handlers[method] = handle })
}

// Now returns the time of the clock.
func (f *Fake) Now() (now time.Time) {
	f.locked(func() { now = f.now })
	return now
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
	c := twoway.New(far, f.told)
	f.conns[c] = far
	go f.await(c)
	return near, nil
}

// Advance moves the clock.
func (f *Fake) Advance(d time.Duration) {
	f.locked(func() { f.now = f.now.Add(d) })
}

// SetFallback makes the IDs fallback IDs, as from a daemon without a lease, or not.
func (f *Fake) SetFallback(fallback bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fallback != fallback {
		f.fallback, f.given = fallback, 1<<sequenceBits // the next ID is of another millisecond
	}
}

// SetSecret sets the secret for external IDs.
func (f *Fake) SetSecret(secret string) error {
	codec, err := kazahana.NewExternalCodec(secret, "default")
	if err != nil {
		return err
	}
	f.locked(func() { f.codec = codec })
	return nil
}

// Fail makes the next calls fail: times of them (all, if times is negative), of the method
// with that name on the wire, or of any method if it is empty. Earlier calls of Fail are
// used up first. The client turns the error into the type of its code, and repeats the call
// after ErrShuttingDown.
func (f *Fake) Fail(method string, times int, err *kazahana.Error) {
	f.locked(func() { f.failures = append(f.failures, failure{method, times, err}) })
}

// Recover ends the effects of Fail.
func (f *Fake) Recover() {
	f.locked(func() { f.failures = nil })
}

// Stop cuts all connections, and refuses new ones until Start is called, like a daemon that
// was killed. Locks are released.
func (f *Fake) Stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	for _, pipe := range f.conns {
		_ = pipe.Close()
	}
}

// Start accepts connections again.
func (f *Fake) Start() {
	f.locked(func() { f.stopped = false })
}

// LoseLock takes a lock from its holder, for a reason: expired, taken_over, refused or
// released. It reports whether the lock was held.
func (f *Fake) LoseLock(key, reason string) bool {
	f.mu.Lock()
	l := f.locks[key]
	if !l.active() {
		f.mu.Unlock()
		return false
	}
	notice := maps.Clone(l.end("EXPIRED"))
	f.mu.Unlock()
	notice["reason"] = reason
	_ = l.holder.Notify("Lock.Lost", notice) // or it is gone
	return true
}

// Calls returns the methods that were called, in order, by their names on the wire.
func (f *Fake) Calls() (all []string) {
	f.locked(func() { all = slices.Clone(f.calls) })
	return all
}

// await frees the locks that a client leaves behind.
func (f *Fake) await(c *Conn) {
	<-c.Done()
	_ = c.Close() // waits for the request that is being handled
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
	for _, l := range f.locks {
		if l.holder == c && l.active() {
			l.end("RELEASED")
		}
	}
}

// told answers a request.
func (f *Fake) told(c *Conn, m *twoway.Message) {
	if !m.IsRequest {
		return
	}
	answer := func(result any, refusal error) {
		if err := c.Answer(m, result, refusal); err != nil && c.Err() == nil {
			panic("kazahanatest: " + err.Error()) // of a function of Fake.Handle
		}
	}
	result, err := f.handle(c, m)
	if wait, ok := result.(Later); ok {
		go func() { answer(wait()) }()
	} else {
		answer(result, err)
	}
}

func (f *Fake) handle(c *Conn, m *twoway.Message) (any, error) {
	r := Request{Conn: c, Params: m.Params, Options: map[string]any{}}
	if n := len(r.Params); n > 0 {
		if options, ok := r.Params[n-1].(map[string]any); ok {
			r.Options, r.Params = options, r.Params[:n-1]
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, m.Method)
	for i := range f.failures {
		one := &f.failures[i]
		if one.times != 0 && (one.method == "" || one.method == m.Method) {
			one.times--
			return nil, one.err
		}
	}
	if handle := f.handlers[m.Method]; handle != nil {
		f.mu.Unlock()
		defer f.mu.Lock()
		return handle(r)
	}
	if method := methods[m.Method]; method != nil {
		return query{f, r}.answer(method)
	}
	return nil, refuse(kazahana.ErrUnknownMethod, "there is no method %q", m.Method)
}
