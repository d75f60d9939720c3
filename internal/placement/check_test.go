package placement

import (
	"strings"
	"testing"
	"time"
)

// check asks for the activation of a token.
func (d *desk) check(token int64) (time.Duration, bool) { return d.core.Check(room, token, d.now) }

// A process may rely on actors that it is asked to activate, and on its own, as long as the
// membership lasts and no longer than MaxPromise.
func TestCheck(t *testing.T) {
	d := newDesk(t)
	d.reserved()
	want := func(token int64, valid time.Duration, ok bool) {
		t.Helper()
		if v, may := d.check(token); v != valid || may != ok {
			t.Errorf("token %d: %v, %v; want %v, %v", token, v, may, valid, ok)
		}
	}
	want(5, MaxPromise, true)
	d.answer(Ensure, Result{PID: "pid"})
	d.answer(Store, Result{})
	d.answer(Release, Result{})
	want(5, MaxPromise, true)
	want(4, 0, false)
	want(6, 0, false)
	d.now.Boot += 10*time.Second - MaxPromise + time.Second
	want(5, MaxPromise-time.Second, true)
	d.now.Boot += MaxPromise - time.Second - 1
	want(5, 1, true)
	d.now.Boot++
	want(5, 0, false) // also before the Tick that notices
}

// From the moment that a process is to let go nothing is promised any more.
func TestNothingIsPromisedAtTheEnd(t *testing.T) {
	for name, end := range map[string]func(d *desk){
		"idle":    func(d *desk) { d.take(d.core.PassivateIdle(0, d.now)) },
		"evicted": func(d *desk) { d.evict(5) },
		"stopped": func(d *desk) { d.take(d.core.Stop(d.now)) },
		"moved":   func(d *desk) { d.topology(others(t, false)...) },
	} {
		d := newDesk(t)
		d.member()
		d.activated()
		end(d)
		if v, ok := d.check(5); ok {
			t.Errorf("%s: valid for %v more", name, v)
		}
		d.answer(Passivate, Result{})
		d.answer(Remove, Result{})
		if _, ok := d.check(5); ok || !d.core.Idle() {
			t.Errorf("%s: it is still there", name)
		}
	}
}

// evict lets the activation of a token go.
func (d *desk) evict(token int64) (there bool) {
	o, there := d.core.Evict(room, token, d.now)
	d.take(o)
	return there
}

// Only the activation of the token is evicted, and its end is told when its record
// names no owner any more.
func TestEvict(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.activated()
	d.done = nil
	if d.evict(4) {
		t.Error("another token is there")
	}
	if _, there := d.core.Evict(Key{"room", "other"}, 5, d.now); there {
		t.Error("another room is there")
	}
	d.idle()
	if !d.evict(5) {
		t.Error("it is not there")
	}
	d.answer(Passivate, Result{})
	if len(d.done) != 0 {
		t.Errorf("its end is told while the record names this host: %+v", d.done)
	}
	d.answer(Remove, Result{})
	d.failed(ErrLost)
}

// A process that ends before its answer is told has activated nothing, with any answer.
func TestEndedWhileItIsAsked(t *testing.T) {
	d := newDesk(t)
	d.reserved()
	d.take(d.core.Ended(room, 5, d.now))
	d.answer(Ensure, Result{PID: "pid"})
	d.answer(Remove, Result{})
	d.answer(Release, Result{})
	if len(d.done) != 1 || d.done[0].Err == nil || !d.core.Idle() {
		t.Errorf("done is %+v", d.done)
	}
}

// What a process answers that cannot be stored ends the activation.
func TestUnusablePID(t *testing.T) {
	for _, pid := range []string{strings.Repeat("x", MaxPID+1), "\xff"} {
		d := newDesk(t)
		d.reserved()
		d.answer(Ensure, Result{PID: pid})
		d.answer(Passivate, Result{}) // the process believes that it has the key
		if c := d.answer(Remove, Result{}); c.Record.Validate() != nil {
			t.Errorf("%.9q: removed is %v", pid, c.Record.Validate())
		}
		d.answer(Release, Result{})
		if len(d.done) != 1 || d.done[0].Err == nil || !d.core.Idle() {
			t.Errorf("%.9q: done is %+v", pid, d.done)
		}
	}
}

// A late Store of new parts does not undo a later one.
func TestLateStoreKeepsThePID(t *testing.T) {
	early := Record{Owner: Member{"a", 1}, Version: 2, Token: 3}
	known := early
	known.PID = "p"
	if next, err := Put(known, early); err != nil || next.PID != "p" {
		t.Errorf("stored is %+v, %v", next, err)
	}
	newer := Record{Owner: Member{"a", 1}, Version: 3, Token: 4}
	if next, err := Put(known, newer); err != nil || next.PID != "" {
		t.Errorf("stored is %+v, %v", next, err)
	}
}

// When a process refuses a key that this host has lost in the meantime, the caller hears
// that it was lost, and asks again.
func TestRefusedAfterItWasLost(t *testing.T) {
	d := newDesk(t)
	d.reserved()
	d.topology(others(t, false)...)
	d.answer(Ensure, Result{Err: errRefused})
	d.answer(Remove, Result{})
	d.answer(Release, Result{})
	d.failed(ErrLost)
}
