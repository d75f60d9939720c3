package daemon

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// idleExecutor returns the executor that runs nothing.
func (r *placed) idleExecutor() *executor {
	r.placement.executors.mu.Lock()
	defer r.placement.executors.mu.Unlock()
	for _, e := range r.placement.executors.byConn {
		if len(e.keys) == 0 {
			return e
		}
	}
	r.t.Fatal("there is no executor without activations")
	return nil
}

// late asks the process for an answer that no call waits for long, and waits for that, and for
// the Ping that follows.
func (e *executor) late(t *testing.T, one executorCall) error {
	told := make(chan error, 1)
	one.within, one.done = time.Millisecond, func(err error) { told <- err }
	e.calls.ask(&one)
	err := <-told
	await.Eventually(t, "the process is silent", e.calls.isSilent)
	return err
}

// A process that answers nothing has the fewest for ever: it must not be asked for
// everything.
func TestSilentExecutorIsPassedOver(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	good := r.worker()
	r.activate(good, "1")
	silent := r.worker()
	if err := r.idleExecutor().late(t, executorCall{method: "Passivate", params: activateParams{Identity: "2"}, useful: true}); err == nil {
		t.Fatal("a process that does not answer has answered")
	}
	r.activate(good, "3")
	// A process that answers, be it late, is asked again.
	silent.answer(silent.want("Passivate", "2"), nil, nil)
	if ping := silent.request(); ping.method != "Ping" {
		t.Fatalf("the daemon asks for %s", ping.method)
	}
	silent.alive()
	r.activate(silent, "4")
}

// A process hears that it is to let go, and the Ping that ends its silence, also when it
// has been too busy to read.
func TestLatePassivateIsSent(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w := r.worker()
	e := r.idleExecutor()
	e.conn.mu.Lock() // as while the peer does not read
	for _, one := range []executorCall{{method: "Activate"}, {method: "Passivate", useful: true}, {method: "Activate"}} {
		one.params = activateParams{Identity: "1"}
		if err := e.late(t, one); err == nil {
			t.Errorf("%s has been answered", one.method)
		}
	}
	e.conn.mu.Unlock()
	for _, method := range []string{"Activate", "Ping", "Passivate"} { // Activate was on its way
		if q := w.request(); q.method != method {
			t.Errorf("asked for %s, want %s", q.method, method)
		}
	}
	w.alive()
}

// The error of a process goes to others, and is kept with events: its length is not
// up to the process, nor is the code of the answer.
func TestLongRefusalIsCut(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w, p := r.worker(), r.dial()
	events, err := r.placement.driver.Subscribe([]placement.EventKind{placement.ActivationFailed})
	must.Succeed(t, err)
	p.ask("Placement.Resolve", "room", "1")
	w.answer(w.want("Activate", "1"), []any{0, "SHUTTING_DOWN: " + strings.Repeat("x\xff", wire.MaxMessage/4)}, nil)
	got := p.receive()
	p.wantError(got, wire.CodeActivationFailed)
	if cause, _ := got.err.Detail("cause"); cause == "" || len(cause) > 8*maxRefusal || !utf8.ValidString(cause) {
		t.Errorf("the cause has %d bytes", len(cause))
	}
	if e := <-events.Events; e.Kind != placement.ActivationFailed || len(e.Reason) > 8*maxRefusal {
		t.Errorf("the reason of %s has %d bytes", e.Kind, len(e.Reason))
	}
}

// A process that hangs in one callback and answers the Ping goes on to serve its kind, although it
// answers nothing else; a process that does not loses its actors to others, until it answers.
func TestSilentExecutorServesNothing(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w, p := r.worker(), r.dial()
	calls := r.idleExecutor().calls
	over := make(chan error, 1)
	late := func() {
		calls.ask(&executorCall{method: "Activate", params: activateParams{Identity: "1"}, within: time.Millisecond, done: func(err error) { over <- err }})
		w.want("Activate", "1")
		<-over
	}
	late()
	ping := w.request()
	if ping.method != "Ping" {
		t.Fatalf("the daemon asks for %s", ping.method)
	}
	await.Eventually(t, "the Ping is late", func() bool { return !r.knows(r, "room") })
	r.upToDate()
	p.fails(wire.CodePlacementUnserved, "Placement.Resolve", "room", "2", options{"wait_ms": 1})
	w.answer(ping, "UNKNOWN_METHOD: it knows none", nil)
	r.serves(r)
	r.activate(w, "2")

	calls.ping(hang)
	if ping = w.request(); ping.method != "Ping" || calls.isSilent() {
		t.Fatalf("the daemon asks for %s, and has it silent: %v", ping.method, calls.isSilent())
	}
	late() // as of a callback that hangs
	w.answer(ping, "UNKNOWN_METHOD: it knows none", nil)
	r.activate(w, "3")
	if calls.isSilent() {
		t.Error("a process that answers the Ping is silent")
	}
}

// A Ping goes before a crowd that waits for its turn: its time runs from the start.
func TestPingIsNotKeptByACrowd(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w := r.worker()
	calls := r.idleExecutor().calls
	for range callWindow + 1 {
		calls.ask(&executorCall{method: "Activate", params: activateParams{Identity: "1"}, within: hang, done: func(error) {}})
	}
	for range callWindow {
		w.want("Activate", "1")
	}
	calls.ping(hang)
	if q := w.request(); q.method != "Ping" {
		t.Errorf("asked for %s", q.method)
	}
}

// A peer can neither have the daemon keep names without end, nor events.
func TestPeersAreBounded(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	p := r.dial()
	kinds := func(from, n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprint("kind", from+i))
		}
		return names
	}
	for range 3 { // the same again are not more
		p.result("Placement.Register", kinds(0, maxKinds))
	}
	long := kinds(maxKinds, 40)
	for i, kind := range long {
		long[i] = kind + strings.Repeat("x", placement.MaxKind-len(kind))
	}
	q := r.dial()
	q.result("Placement.Register", long)
	q.fails(wire.CodeOverloaded, "Placement.Register", []string{strings.Repeat("y", placement.MaxKind)})
	if got := r.server.Status().Overload; len(got) != 1 || got[0].Limit != refusals.Kinds {
		t.Errorf("counted are %+v", got)
	}
	q.result("Placement.Register", kinds(0, 1)) // it is known
	p.result("Placement.Watch")
	p.fails(wire.CodeInvalidParams, "Placement.Watch")
	p.alive()
}

// A connection that watches again and again keeps nothing of the watches that have ended.
func TestEndedWatchIsLetGo(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w := r.worker()
	c := r.idleExecutor().conn
	c.mu.Lock()
	before := len(c.slow.onClose)
	c.mu.Unlock()
	for range 3 {
		w.table("Placement.Watch")
		c.mu.Lock()
		present := c.watch
		c.mu.Unlock()
		present.events.Close() // as when the peer is too slow
		<-present.ended
		var notice []any
		if err := w.dec.Decode(&notice); err != nil || notice[1] != "Placement.WatchEnded" {
			t.Fatalf("told is %v, %v", notice, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.slow.onClose) - before; n != 1 || c.watch != nil {
		t.Errorf("%d ends wait for that of the connection, and the watch %v", n, c.watch)
	}
}

// A process that froze, and let more time go by while it was silent, is found silent again
// when it freezes once more.
func TestSilentExecutorFreezesAgain(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w, e := r.worker(), r.idleExecutor()
	for n, identity := range []string{"1", "2"} {
		for _, method := range []string{"Activate", "Passivate"} {
			_ = e.late(t, executorCall{method: method, params: activateParams{Identity: identity}, useful: true})
		}
		if n == 0 {
			w.answer(w.want("Activate", identity), nil, nil)
			await.Eventually(t, "the process has answered", func() bool { return !e.calls.isSilent() })
		}
	}
}
