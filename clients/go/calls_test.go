//go:build go1.25

package kazahana

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// cutAfter reads a request, writes some bytes, and hangs up.
func cutAfter(bytes ...byte) script {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1024))
		_, _ = conn.Write(bytes)
	}
}

// A stream that ends, wherever in an answer, costs no error.
func TestCutStreamsAreRepeated(t *testing.T) {
	for what, first := range map[string]script{
		"before the request":  func(net.Conn) {},
		"before the answer":   cutAfter(),
		"inside the answer":   cutAfter(0x94, 1, 1, 0xc0, 0xcf, 0, 0),
		"after another one's": cutAfter(0x94, 1, 77, 0xc0, 5),
	} {
		t.Run(what, func(t *testing.T) {
			c := newClient(t, scripted(t, first, first, number(7)))
			if id, err := c.NextID(t.Context()); err != nil || id != 7 {
				t.Errorf("%d, %v", id, err)
			}
		})
	}
}

func TestShuttingDownIsRepeated(t *testing.T) {
	stopping := refuse(text(ErrShuttingDown, "the daemon is stopping"))
	c := newClient(t, scripted(t, stopping, stopping, number(7)))
	if id, err := c.NextID(t.Context()); err != nil || id != 7 {
		t.Errorf("%d, %v", id, err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, scripted(t, stopping), WithTimeout(3*time.Second))
		began := time.Now()
		if _, err := c.NextID(t.Context()); !errors.Is(err, ErrShuttingDown) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// What the daemon refuses is not asked for again.
func TestRefusalsAreFinal(t *testing.T) {
	for _, code := range []Code{
		ErrPermissionDenied, ErrOverloaded, ErrInvalidParams, ErrStoreUnavailable, ErrTimeout, "SOMETHING_NEW",
	} {
		times := 0
		c := newClient(t, scripted(t, answering(func(c *peer, r *message) bool {
			times++
			return c.Refuse(r.ID, text(code, "no", "cause", "this"))
		})))
		_, err := c.NextID(t.Context())
		var e *Error
		if !errors.As(err, &e) || e.Code != code || e.Message != "no" || e.Details["cause"] != "this" || times != 1 {
			t.Errorf("%s: %v after %d times", code, err, times)
		}
	}
}

// Whom the daemon turns away by msgid 0 it has told for good.
func TestFarewellIsFinal(t *testing.T) {
	c := newClient(t, scripted(t, answering(func(c *peer, _ *message) bool {
		c.Refuse(0, text(ErrPermissionDenied, "not you"))
		return false
	})))
	if _, err := c.NextID(t.Context()); !errors.Is(err, ErrPermissionDenied) {
		t.Error(err)
	}
}

// A connection serves further calls after a refusal, unless the daemon turns the client away.
func TestConnectionsAfterRefusals(t *testing.T) {
	for code, next := range map[Code]ID{ErrInvalidParams: 1, ErrOverloaded: 2, ErrPermissionDenied: 2} {
		first := answering(func(p *peer, m *message) bool {
			if m.ID == 1 {
				return p.Refuse(m.ID, text(code, "no"))
			}
			return p.Reply(m.ID, 1)
		})
		c := newClient(t, scripted(t, first, number(2)))
		if _, err := c.NextID(t.Context()); !errors.Is(err, code) {
			t.Error(err)
		}
		if id := nextID(t, c); id != next {
			t.Errorf("after %s the answer is connection %d's", code, id)
		}
	}
}

// numbered returns the option for a daemon whose n-th connection answers with n, after a
// millisecond, and a function that returns the numbers of the open connections.
func numbered(t *testing.T) (server Option, open func() []int) {
	var mu sync.Mutex
	made, now := 0, map[int]bool{}
	server = scripted(t, func(conn net.Conn) {
		mu.Lock()
		made++
		n := made
		now[n] = true
		mu.Unlock()
		answering(func(p *peer, m *message) bool {
			time.Sleep(time.Millisecond)
			return p.Reply(m.ID, n)
		})(conn)
		mu.Lock()
		delete(now, n)
		mu.Unlock()
	})
	return server, func() []int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(maps.Keys(now))
	}
}

// together makes so many calls at the same time.
func together(t *testing.T, c *Client, calls int) (ids []ID) {
	ids = make([]ID, calls)
	var work sync.WaitGroup
	for i := range ids {
		work.Go(func() {
			var err error
			if ids[i], err = c.NextID(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	slices.Sort(ids)
	return ids
}

// There are as many connections as calls at the same time. Then some are kept, and the one that
// was used last serves the next call.
func TestConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, open := numbered(t)
		c := newClient(t, server)
		for range 10 {
			if id := nextID(t, c); id != 1 {
				t.Errorf("the connection %d for one call after another", id)
			}
		}
		const calls = maxIdle + 10
		if ids := together(t, c, calls); len(slices.Compact(ids)) != calls {
			t.Errorf("%d connections for %d calls", len(ids), calls)
		}
		synctest.Wait()
		if kept := open(); len(kept) != maxIdle {
			t.Errorf("%d connections are kept", len(kept))
		}
		last := nextID(t, c)
		for range 10 {
			if id := nextID(t, c); id != last {
				t.Errorf("the connection %d after %d", id, last)
			}
		}
		_ = c.Close()
		synctest.Wait()
		if left := open(); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
	})
}

// After a restart of the daemon all idle connections are stale. The first call that meets one
// closes them all, and connects once, at once.
func TestStaleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 20
		dials, ends := 0, []net.Conn{}
		var mu sync.Mutex
		c := newClient(t, WithDialer(func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			mu.Lock()
			defer mu.Unlock()
			dials, ends = dials+1, append(ends, far)
			go answering(func(p *peer, m *message) bool {
				time.Sleep(time.Millisecond)
				return p.Reply(m.ID, 7)
			})(far)
			return near, nil
		}))
		together(t, c, calls)
		for _, end := range ends {
			_ = end.Close()
		}
		began := time.Now()
		if id := nextID(t, c); id != 7 || time.Since(began) != time.Millisecond || dials != calls+1 || len(c.idle) != 1 {
			t.Errorf("%d after %v, %d connections were made, %d are kept", id, time.Since(began), dials, len(c.idle))
		}
		_ = c.Close()
		_ = ends[calls].Close()
	})
}

// A connection on which an answer is due serves no other call.
func TestConnectionsEndWithTheirCallsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, WithTimeout(time.Second), scripted(t, answering(func(p *peer, m *message) bool {
			return m.ID == 1 || p.Reply(m.ID, 1)
		}), number(2)))
		if _, err := c.NextID(t.Context()); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
		if id := nextID(t, c); id != 2 {
			t.Errorf("the answer is that of connection %d", id)
		}
	})
}

// A call that its context ends leaves no answer behind for another one.
func TestCancelledCallsLeaveNothingBehind(t *testing.T) {
	c := newClient(t, scripted(t, answering(func(p *peer, m *message) bool {
		return p.Reply(m.ID, m.Options()["latest_ms"])
	})))
	for want := range ID(2000) {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		stamp := func(o callOptions) { o["latest_ms"] = int64(want + 1) }
		if id, err := c.NextID(ctx, stamp); err != nil && !errors.Is(err, context.Canceled) || err == nil && id != want+1 {
			t.Fatal(id, err)
		}
		if id, err := c.NextID(t.Context(), stamp); id != want+1 || err != nil {
			t.Fatal(id, err)
		}
	}
}

func TestSomethingElseAnswers(t *testing.T) {
	c := newClient(t, scripted(t, cutAfter([]byte("HTTP/1.1 400 Bad Request\r\n")...)))
	if _, err := c.NextID(t.Context()); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
}

// silent reads, and never answers.
func silent(conn net.Conn) {
	for b := make([]byte, 1024); ; {
		if _, err := conn.Read(b); err != nil {
			return
		}
	}
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, scripted(t, silent), WithTimeout(3*time.Second))
		for _, test := range []struct{ limit, want time.Duration }{{time.Second, time.Second}, {time.Minute, 3 * time.Second}} {
			ctx, cancel := context.WithTimeout(t.Context(), test.limit)
			began := time.Now()
			_, err := c.NextID(ctx)
			var timeout *RequestTimeoutError
			if !errors.As(err, &timeout) || timeout.Waited != test.want || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrTimeout) {
				t.Errorf("%v", err)
			}
			if waited := time.Since(began); waited != test.want {
				t.Errorf("it took %v, not %v", waited, test.want)
			}
			cancel()
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := c.NextID(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
	})
}

// An answer may come in the very moment of the deadline: the call returns it, or the error.
func TestAnAnswerAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, WithTimeout(time.Second), scripted(t, answering(func(p *peer, m *message) bool {
			time.Sleep(time.Second)
			return p.Reply(m.ID, 7)
		})))
		for range 2000 {
			id, err := c.NextID(t.Context())
			if id != 7 && err == nil || id != 0 && err != nil || err != nil && !errors.Is(err, ErrTimeout) {
				t.Fatal(id, err)
			}
		}
	})
}

// The daemon hears how long it has, a little less than the call.
func TestDaemonIsToldTheTime(t *testing.T) {
	for timeout, want := range map[time.Duration]int64{10 * time.Second: 9899, time.Second: 949, 2 * time.Millisecond: 1} {
		synctest.Test(t, func(t *testing.T) {
			var told int64
			c := newClient(t, WithTimeout(timeout+time.Nanosecond), scripted(t, answering(func(c *peer, r *message) bool {
				told, _ = r.Options()["timeout_ms"].(int64)
				return c.Reply(r.ID, 1)
			})))
			if _, err := c.NextID(t.Context()); err != nil {
				t.Fatal(err)
			}
			if told != want && told != want+1 {
				t.Errorf("of %v the daemon was told %d ms", timeout, told)
			}
		})
	}
}

// A daemon that was never there is given up soon, an earlier one not.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		absent := errors.New("nobody there")
		there := false
		near, far := net.Pipe()
		go number(7)(far)
		c := newClient(t, WithDialer(func(context.Context) (net.Conn, error) {
			if there {
				there = false
				return near, nil
			}
			return nil, absent
		}))
		for range 2 {
			began := time.Now()
			_, err := c.NextID(t.Context())
			var unavailable *DaemonUnavailableError
			if !errors.As(err, &unavailable) || !errors.Is(err, absent) {
				t.Errorf("%v", err)
			}
			if waited := time.Since(began); waited < firstConnect || waited > firstConnect+maxPause {
				t.Errorf("given up after %v", waited)
			}
		}
		there = true
		if id, err := c.NextID(t.Context()); id != 7 || err != nil {
			t.Fatal(id, err)
		}
		_ = far.Close()
		began := time.Now()
		if _, err := c.NextID(t.Context()); !errors.Is(err, ErrDaemonUnavailable) || time.Since(began) != DefaultTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// After the first failure the next connection is tried at once, and then after pauses.
func TestPausesGrow(t *testing.T) {
	for failures, most := range []time.Duration{0, minPause, 2 * minPause, 4 * minPause, 8 * minPause, 16 * minPause, 32 * minPause, maxPause, maxPause} {
		for range 100 {
			if got := pause(failures); got < most/2 || got > most {
				t.Fatalf("after %d failures: %v", failures, got)
			}
		}
	}
	if got := pause(1 << 40); got > maxPause {
		t.Error(got)
	}
}

// What waiting cannot mend fails at once.
func TestHopelessSockets(t *testing.T) {
	dir, err := os.MkdirTemp("", "kz-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	failsAtOnce := func(opt ...Option) (got error) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, append(opt, WithTimeout(time.Hour))...)
			began := time.Now()
			if _, got = c.NextID(t.Context()); time.Since(began) != 0 {
				t.Errorf("%v, after %v", got, time.Since(began))
			}
		})
		return got
	}
	var unavailable *DaemonUnavailableError
	if err := failsAtOnce(WithSocket(file)); !errors.As(err, &unavailable) || unavailable.Socket != file || !strings.Contains(err.Error(), "not a socket") {
		t.Error(err)
	}
	t.Setenv("KAZAHANA_SOCKET", "http://example.com")
	if err := failsAtOnce(); !errors.Is(err, ErrDaemonUnavailable) || !strings.Contains(err.Error(), "KAZAHANA_SOCKET") {
		t.Error(err)
	}
}

// The error names the place, and what to do.
func TestMissingDaemon(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "no.sock")
	_, err := newClient(t, WithSocket(missing)).NextID(t.Context())
	if !errors.Is(err, ErrDaemonUnavailable) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "kazahanad serve --socket "+missing) {
		t.Error(err)
	}
	t.Setenv("KAZAHANA_SOCKET", "unix://"+missing)
	if _, err = newClient(t).NextID(t.Context()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Error(err)
	}
}

func TestWrongOptions(t *testing.T) {
	for _, opt := range []Option{
		WithSocket(""), WithSocket("http://x/"), WithTimeout(0), WithTimeout(MaxTimeout + 1),
		WithPrefetch(-1, 0), WithPrefetch(MaxBatch+1, 0), WithPrefetch(1, -1), WithPrefetch(1, 2*time.Hour),
	} {
		if c, err := New(opt); !errors.Is(err, ErrInvalidParams) || c != nil {
			t.Errorf("%v, %v", c, err)
		}
	}
}

// Calls under way go on to their ends, and leave no connection. Later ones fail.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, open := numbered(t)
		plain, ahead := newClient(t, server), newClient(t, server, WithPrefetch(1, 0))
		var calls sync.WaitGroup
		for _, call := range []func(context.Context) error{plain.Ping, plain.Ping, ahead.Ping} {
			calls.Go(func() {
				if err := call(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if now := open(); len(now) != 3 {
			t.Errorf("%v are open", now)
		}
		for _, c := range []*Client{plain, ahead} {
			if err := errors.Join(c.Close(), c.Close()); err != nil {
				t.Error(err)
			}
			if err := c.Ping(t.Context()); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if _, err := c.NextID(t.Context()); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
		calls.Wait()
		synctest.Wait()
		if left := open(); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
	})
}

// A sequence's attempts carry one request ID, so that none takes values twice,
// and two calls carry two.
func TestSequenceRepeatsItsRequestID(t *testing.T) {
	var asked []string
	take := func(answered bool) script {
		return answering(func(c *peer, r *message) bool {
			if r.Params[0] != "k" {
				t.Error(r.Params)
			}
			asked = append(asked, fmt.Sprint(r.Options()["request_id"]))
			return answered && c.Reply(r.ID, 1)
		})
	}
	c := newClient(t, scripted(t, take(false), take(false), take(true)))
	for range 2 {
		if v, err := c.NextSequence(t.Context(), "k"); v != 1 || err != nil {
			t.Error(v, err)
		}
	}
	if _, err := c.NextSequence(t.Context(), "k", WithRequestID("mine")); err != nil {
		t.Error(err)
	}
	if len(asked) != 5 || asked[0] == "" || asked[0] != asked[1] || asked[1] != asked[2] || asked[3] == asked[2] || asked[4] != "mine" {
		t.Errorf("the request IDs were %q", asked)
	}
}

// Many goroutines share a Client, and a daemon.
func TestManyGoroutines(t *testing.T) {
	d := newDaemon(t)
	c := d.client()
	seen := map[ID]bool{}
	for range 3 {
		for _, id := range together(t, c, 500) {
			seen[id] = true
		}
	}
	if len(seen) != 1500 {
		t.Errorf("%d different IDs", len(seen))
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		st, err := c.Status(t.Context())
		if err != nil || time.Now().After(end) {
			t.Fatalf("%d connections, %v", st.Connections, err)
		}
		if st.Connections <= maxIdle { // the daemon has noticed the end of the others
			break
		}
	}
}

// With a single attempt nothing is waited for, and nothing asked again.
func TestSingleAttempt(t *testing.T) {
	stopping := refuse(text(ErrShuttingDown, "the daemon is stopping"))
	absent := WithDialer(func(context.Context) (net.Conn, error) { return nil, errors.New("nobody there") })
	for what, test := range map[string]struct {
		scripts []script // none: there is no server
		want    error
	}{
		"missing":  {nil, ErrDaemonUnavailable},
		"lost":     {[]script{cutAfter(), number(7)}, ErrDaemonUnavailable},
		"stopping": {[]script{stopping, number(7)}, ErrShuttingDown},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := absent
			if test.scripts != nil {
				server = scripted(t, test.scripts...)
			}
			c := newClient(t, server, WithSingleAttempt())
			began := time.Now()
			if id, err := c.NextID(t.Context()); !errors.Is(err, test.want) || time.Since(began) != 0 {
				t.Errorf("%s: %d, %v after %v", what, id, err, time.Since(began))
			}
			// It is no reason not to ask the next time.
			if id, err := c.NextID(t.Context()); test.scripts != nil && (id != 7 || err != nil) {
				t.Errorf("%s, and the next call: %d, %v", what, id, err)
			}
		})
	}
	// A connection that has served a call may have ended with its daemon, and be no daemon's fault.
	stale := newClient(t, scripted(t, answering(func(p *peer, m *message) bool {
		p.Reply(m.ID, 1)
		return false
	}), number(2)), WithSingleAttempt())
	if ids := [2]ID{nextID(t, stale), nextID(t, stale)}; ids != [2]ID{1, 2} {
		t.Error(ids)
	}
	// A lock is asked for once more with a new ID, and then the daemon's reason is given.
	again := newClient(t, scripted(t, refuse(text(ErrRequestIDReused, "first")), refuse(text(ErrRequestIDReused, "second")), refuse(text(ErrRequestIDReused, "third")), silent))
	if _, err := again.Lock(t.Context(), "k", LockOptions{}); !errors.Is(err, ErrRequestIDReused) || !strings.Contains(err.Error(), "second") {
		t.Error(err)
	}
	// Nor does a lock that was lost with its connection get another one.
	c := newClient(t, scripted(t, refuse(text(ErrRequestIDReused, "no")), silent), WithSingleAttempt())
	if _, err := c.Lock(t.Context(), "k", LockOptions{}); !errors.Is(err, ErrRequestIDReused) {
		t.Error(err)
	}
}
