package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	room       = Key{"room", "42"}
	errRefused = errors.New("held by another")
)

// desk is a core with commands that a test carries out by hand.
type desk struct {
	*testing.T
	core *Core
	now  Moment
	todo []Command
	done []Done
}

func newDesk(t *testing.T) *desk {
	d := &desk{T: t, core: NewCore("me:1", nil), now: Moment{Boot: time.Hour, UnixMS: 1_800_000_000_000}}
	d.core.SetKinds([]string{"room"}, d.now)
	return d
}

// member makes the core a member among others.
func (d *desk) member(others ...string) {
	d.core.Start()
	d.take(d.core.SetMembership(7, d.now.Boot+10*time.Second, d.now))
	d.topology(others...)
}

func (d *desk) topology(others ...string) {
	members := []Host{serving("me:1", 7)}
	for _, name := range others {
		members = append(members, serving(name, 3))
	}
	d.take(d.core.UpdateTopology(members, d.now))
}

func (d *desk) take(o Outcome) {
	d.todo = append(d.todo, o.Commands...)
	d.done = append(d.done, o.Done...)
}

func (d *desk) resolve() (Resolution, error) {
	r, o, err := d.core.Resolve(room, d.now)
	d.take(o)
	return r, err
}

func (d *desk) pending() {
	d.Helper()
	if r, err := d.resolve(); !errors.Is(err, ErrPending) {
		d.Fatalf("resolved to %+v, %v; want ErrPending", r, err)
	}
}

// expect takes the one command that is due.
func (d *desk) expect(op Op) Command {
	d.Helper()
	if len(d.todo) != 1 || d.todo[0].Op != op {
		d.Fatalf("to do is %+v, want %s", d.todo, op)
	}
	c := d.todo[0]
	d.todo = nil
	return c
}

func (d *desk) idle() {
	d.Helper()
	if len(d.todo) != 0 {
		d.Fatalf("to do is %+v, want nothing", d.todo)
	}
}

// answer carries out the command that is due.
func (d *desk) answer(op Op, r Result) Command {
	d.Helper()
	c := d.expect(op)
	r.ID = c.ID
	d.take(d.core.HandleResult(r, d.now))
	return c
}

// reserved makes the core a member that has reserved the key, and asks for its activation.
func (d *desk) reserved() {
	d.Helper()
	d.member()
	d.reserve()
}

func (d *desk) reserve() {
	d.Helper()
	d.pending()
	d.answer(TryAcquire, Result{Lease: Lease{"l", 5}})
	d.answer(Load, Result{})
	d.answer(Store, Result{})
}

func (d *desk) activated() Resolution {
	d.Helper()
	d.reserve()
	d.answer(Ensure, Result{PID: "pid"})
	d.answer(Store, Result{})
	d.answer(Release, Result{})
	r, err := d.resolve()
	if err != nil {
		d.Fatal(err)
	}
	d.idle()
	return r
}

// failed expects the end of an activation, and nothing left behind.
func (d *desk) failed(with error) {
	d.Helper()
	d.idle()
	if len(d.done) != 1 || !errors.Is(d.done[0].Err, with) || !d.core.Idle() {
		d.Fatalf("done is %+v, want %v; idle: %v", d.done, with, d.core.Idle())
	}
}

// mine finds a set of others under which the key is, or is not, the core's.
func others(t *testing.T, mine bool) []string {
	for i := range 1000 {
		name := fmt.Sprintf("other-%d:1", i)
		if (among("me:1", name).Authority(room) == "me:1") == mine {
			return []string{name}
		}
	}
	t.Fatal("no such name")
	return nil
}

// PL-1.1, PL-C1: a resolve decides the placement, and no command is made of a
// remote one.
func TestResolveDecides(t *testing.T) {
	d := newDesk(t)
	other := others(t, false)
	d.member(other...)
	r, err := d.resolve()
	want := Resolution{Key: room, Authority: other[0], Locality: Remote, ObservedMS: d.now.UnixMS}
	if err != nil || r != want { // seeds 004-33 and 004-65
		t.Errorf("resolved to %+v, %v; want %+v", r, err, want)
	}
	// Seed 004-45.
	d.idle() // remote: no commands
	told := Event{Kind: Resolved, Key: room, Authority: other[0], ObservedMS: d.now.UnixMS}
	if events := d.core.DrainEvents(); !slices.Equal(events, []Event{told}) { // seed 004-47: a remote one too
		t.Errorf("told is %+v, want %+v", events, told)
	}
}

// PL-1.2: a changed topology counts from then on, also for present actors.
func TestTopologyCounts(t *testing.T) {
	d := newDesk(t)
	d.member(others(t, true)...)
	d.activated()
	other := others(t, false)
	d.topology(other...)
	if r, err := d.resolve(); err != nil || r.Authority != other[0] || r.Locality != Remote { // seed 004-18
		t.Errorf("resolved to %+v, %v", r, err)
	}
	c := d.answer(Passivate, Result{Snapshot: []byte("s")})
	if c.Record.Token != 5 {
		t.Errorf("passivated is %+v", c.Record)
	}
	if c := d.answer(Remove, Result{}); string(c.Record.Snapshot) != "s" || c.Keep {
		t.Errorf("removed is %+v", c)
	}
	d.idle()
	d.topology()
	d.pending()
	d.expect(TryAcquire)
}

// PL-1.2: a topology that takes nothing away leaves alone what is activated.
func TestTopologyLeavesAlone(t *testing.T) {
	d := newDesk(t)
	d.member()
	first := d.activated()
	for range 3 {
		d.topology(others(t, true)...)
		d.topology()
	}
	if r, err := d.resolve(); err != nil || r != first {
		t.Errorf("resolved to %+v, %v", r, err)
	}
	d.idle()
}

// PL-1.3: an unknown kind or key is refused.
func TestNotReadyIsRefused(t *testing.T) {
	d := newDesk(t)
	refused := func(state State) {
		t.Helper()
		if got := d.core.State(d.now); got != state {
			t.Errorf("the state is %s, want %s", got, state)
		}
		if r, err := d.resolve(); !errors.Is(err, ErrNotReady) { // seeds 004-44, 004-62 and 004-65
			t.Errorf("resolved to %+v, %v", r, err)
		}
		d.idle()
		if events := d.core.DrainEvents(); len(events) != 0 { // seed 004-47
			t.Errorf("told is %+v", events)
		}
	}
	refused(StateStopped)
	d.core.Start()
	refused(StateNotReady)
	d.take(d.core.SetMembership(7, d.now.Boot+time.Second, d.now))
	refused(StateNotReady)
	d.take(d.core.UpdateTopology(nil, d.now))
	refused(StateNotReady)
	d.take(d.core.UpdateTopology([]Host{serving("me:1", 6)}, d.now)) // an earlier membership of this host
	refused(StateNotReady)
	d.topology()
	if got := d.core.State(d.now); got != StateMember {
		t.Errorf("the state is %s", got)
	}
	d.now.Boot += time.Second - 1
	if got := d.core.State(d.now); got != StateMember {
		t.Errorf("the state is %s", got)
	}
	d.now.Boot++
	refused(StateNotReady) // the membership has ended by this host's own clock
}

// PL-C1: who only resolves begins nothing.
func TestClientResolves(t *testing.T) {
	c := NewCore("", nil)
	c.Start()
	c.UpdateTopology([]Host{serving("a:1", 1)}, Moment{})
	r, o, err := c.Resolve(room, Moment{})
	// Seeds 004-14 and 004-32.
	if err != nil || r.Authority != "a:1" || r.Locality != Remote || len(o.Commands) != 0 || c.State(Moment{}) != StateClient {
		t.Errorf("resolved to %+v, %+v, %v", r, o, err)
	}
}

// PL-2.1, PL-C3: an activation is begun, once, and its steps come in the order that
// is safe.
func TestActivation(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.pending()
	// Seed 004-55.
	d.pending()                                        // nothing is begun twice
	d.answer(TryAcquire, Result{Lease: Lease{"l", 5}}) // seed 004-45
	d.answer(Load, Result{Found: true, Record: Record{Version: 3, Token: 4, Snapshot: []byte("s")}})
	reserved := d.answer(Store, Result{}).Record
	// Seed 004-11.
	if reserved.Owner != (Member{"me:1", 7}) || reserved.PID != "" || reserved.Version != 4 || reserved.Token != 5 {
		t.Errorf("reserved is %+v", reserved)
	}
	ensure := d.answer(Ensure, Result{PID: "pid"})
	// Seed 004-28.
	if ensure.Record.Version != 4 || ensure.Record.Token != 5 || string(ensure.Record.Snapshot) != "s" || ensure.Until != time.Hour+10*time.Second {
		t.Errorf("asked for is %+v", ensure)
	}
	if recorded := d.answer(Store, Result{}).Record; recorded.PID != "pid" || string(recorded.Snapshot) != "s" {
		t.Errorf("recorded is %+v", recorded)
	}
	if len(d.done) != 1 || d.done[0].Err != nil || d.done[0].Resolution.PID != "pid" { // seed 004-37
		t.Errorf("done is %+v", d.done)
	}
	// Seed 004-26.
	d.answer(Release, Result{Err: errRefused}) // it expires
	d.idle()
}

// PL-2.2: an activated actor is used again, without any I/O.
func TestActivationIsReused(t *testing.T) {
	d := newDesk(t)
	d.member()
	first := d.activated()
	if first.Locality != Local || first.PID != "pid" || first.Version != 1 || first.Token != 5 {
		t.Errorf("resolved to %+v", first)
	}
	d.now.UnixMS++
	// Seed 004-65.
	if again, err := d.resolve(); err != nil || again.PID != "pid" || again.ObservedMS != first.ObservedMS+1 {
		t.Errorf("resolved to %+v, %v", again, err)
	}
	d.idle()
}

// PL-3.1: without the lock nothing is done, and the denial is told.
func TestLockDenied(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.pending()
	d.answer(TryAcquire, Result{Err: errRefused})
	d.failed(errRefused) // seed 004-58
	events := d.core.DrainEvents()
	// Seeds 004-35 and 004-65.
	if len(events) < 3 || events[1].Kind != LockDenied || events[1].Reason != errRefused.Error() || events[2].Kind != ActivationFailed {
		t.Errorf("told is %+v", events)
	}
}

// In a handover another host is at work on the key, or has it: the denial is told with
// its reason, and no failure.
func TestHandoverIsNoFailure(t *testing.T) {
	d := newDesk(t)
	d.member()
	told := func(reason string) {
		t.Helper()
		events := d.core.DrainEvents()
		// Seeds 004-12, 004-51 and 004-52.
		if len(events) != 2 || events[1].Kind != LockDenied || !strings.Contains(events[1].Reason, reason) || events[1].Err == nil {
			t.Errorf("told is %+v", events)
		}
		d.done = nil
	}
	d.pending()
	d.answer(TryAcquire, Result{Err: errRefused, Denied: true})
	d.failed(errRefused)
	told(errRefused.Error())
	d.pending()
	d.answer(TryAcquire, Result{Lease: Lease{"l", 5}})
	d.answer(Load, Result{Found: true, Record: Record{Owner: Member{"old:1", 2}, Version: 1, Token: 2}})
	d.answer(CheckOwner, Result{Ended: false})
	d.answer(Release, Result{})
	d.failed(ErrOwned)
	told("old:1")
}

// PL-3.5, PL-C6: the lock is given back after any failure at any time, and begun steps are taken
// back before. The failure is told with its reason.
func TestWhateverFails(t *testing.T) {
	ok := map[Op]Result{TryAcquire: {Lease: Lease{"l", 5}}, Load: {Found: true, Record: Record{Owner: Member{"old:1", 2}, Version: 1, Token: 2}},
		CheckOwner: {Ended: true}, Ensure: {PID: "pid"}}
	steps := []Op{TryAcquire, Load, CheckOwner, Store, Ensure, Store}
	for i, test := range []struct {
		fails Result
		after []Op
		with  error
	}{
		{Result{Err: errRefused}, nil, errRefused},
		{Result{Err: errRefused}, []Op{Release}, errRefused},
		{Result{Err: errRefused}, []Op{Release}, errRefused},
		{Result{Err: errRefused}, []Op{Remove, Release}, errRefused},
		{Result{Err: errRefused}, []Op{Remove, Release}, errRefused},
		{Result{Err: errRefused}, []Op{Passivate, Remove, Release}, errRefused},
		2 + 4: {Result{Ended: false}, []Op{Release}, ErrOwned},                                        // CheckOwner
		3 + 4: {Result{Err: ErrStale}, []Op{Release}, ErrStale},                                       // Store: nothing to take back
		4 + 4: {Result{Err: errRefused, Unknown: true}, []Op{Passivate, Remove, Release}, errRefused}, // Ensure
		5 + 4: {Result{Err: ErrStale, Unknown: true}, []Op{Passivate, Remove, Release}, ErrStale},     // the second Store
	} {
		d := newDesk(t)
		d.member()
		d.pending()
		at := i
		if i >= len(steps) {
			at -= 4
		}
		for _, op := range steps[:at] {
			d.answer(op, ok[op])
		}
		d.answer(steps[at], test.fails)
		for _, op := range test.after {
			d.answer(op, Result{})
		}
		d.failed(test.with) // seed 004-27
		events := d.core.DrainEvents()
		last, want := events[len(events)-1], ActivationFailed
		if test.with == ErrOwned {
			want = LockDenied
		}
		// Seed 004-63.
		if last.Kind != want || last.Key != room || !strings.Contains(last.Reason, test.with.Error()) || last.ObservedMS != d.now.UnixMS {
			t.Errorf("told is %+v", events)
		}
	}
}

// The same when the key is lost meanwhile: an activation that is not wanted any
// more goes no step further.
func TestLostMeanwhile(t *testing.T) {
	lost := map[string]func(*desk){
		"authority":  func(d *desk) { d.topology(others(t, false)...) },
		"membership": func(d *desk) { d.take(d.core.SetMembership(0, 0, d.now)) },
		"time":       func(d *desk) { d.now.Boot += 10 * time.Second },
		"stop":       func(d *desk) { d.take(d.core.Stop(d.now)) },
	}
	for what, lose := range lost {
		steps := []Op{TryAcquire, Load, Store, Ensure, Store}
		after := [][]Op{{Release}, {Release}, {Remove, Release}, {Passivate, Remove, Release}, {Passivate, Remove, Release}}
		for i := range steps {
			t.Run(fmt.Sprintf("%s, step %d", what, i), func(t *testing.T) {
				d := newDesk(t)
				d.member()
				d.pending()
				for j := range i {
					d.answer(steps[j], Result{Lease: Lease{"l", 5}, PID: "pid"})
				}
				lose(d)
				d.answer(steps[i], Result{Lease: Lease{"l", 5}, PID: "pid"})
				for _, op := range after[i] {
					d.answer(op, Result{})
				}
				d.failed(ErrLost)
			})
		}
	}
}

// A record that could not be removed keeps everybody away: it is tried again.
func TestRemovedInTheEnd(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.activated()
	d.take(d.core.PassivateIdle(0, d.now))
	d.answer(Passivate, Result{Err: errRefused})
	for range 3 {
		if c := d.answer(Remove, Result{Err: errRefused}); !c.Keep {
			t.Error("the snapshot of a process that did not answer is replaced")
		}
		d.idle()
		d.pending()
		d.take(d.core.Tick(d.now))
	}
	d.answer(Remove, Result{})
	d.done = d.done[1:] // the activation
	d.failed(ErrLost)   // for the callers: they ask again
	d.pending()
	d.expect(TryAcquire)
}

// A host that comes back takes over the records of its earlier memberships, and none of
// a later one.
func TestOwnRecords(t *testing.T) {
	for token, op := range map[int64]Op{6: Store, 7: Store, 8: CheckOwner} {
		d := newDesk(t)
		d.member()
		d.pending()
		d.answer(TryAcquire, Result{Lease: Lease{"l", 5}})
		d.answer(Load, Result{Found: true, Record: Record{Owner: Member{"me:1", token}, Version: 1, Token: 4}})
		d.expect(op)
	}
}

// A store of locks that has forgotten its tokens is found out.
func TestTokensGrow(t *testing.T) {
	for _, stored := range []int64{5, 6} {
		d := newDesk(t)
		d.member()
		d.pending()
		d.answer(TryAcquire, Result{Lease: Lease{"l", 5}})
		d.answer(Load, Result{Found: true, Record: Record{Version: 1, Token: stored}})
		d.answer(Release, Result{})
		if len(d.done) != 1 || d.done[0].Err == nil {
			t.Errorf("done is %+v", d.done)
		}
	}
}

// PL-4.1: start and stop; stopping gives back all actors.
func TestStartAndStop(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.activated()
	d.take(d.core.Stop(d.now))
	if d.core.Idle() || d.core.State(d.now) != StateStopped {
		t.Errorf("the state is %s, idle: %v", d.core.State(d.now), d.core.Idle())
	}
	d.answer(Passivate, Result{})
	d.answer(Remove, Result{})
	d.idle()
	if !d.core.Idle() {
		t.Error("something is left")
	}
	d.core.Start()
	d.pending()
	d.expect(TryAcquire)
}

// The membership has ended by this host's own clock: what runs has to end.
func TestMembershipEnds(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.activated()
	d.now.Boot += 10*time.Second - 1
	d.take(d.core.Tick(d.now))
	d.idle()
	d.now.Boot++
	d.take(d.core.Tick(d.now))
	d.answer(Passivate, Result{})
	d.answer(Remove, Result{})
	d.idle()
	// Another membership is another member.
	d.take(d.core.SetMembership(9, d.now.Boot+10*time.Second, d.now))
	if got := d.core.State(d.now); got != StateNotReady {
		t.Errorf("the state is %s before the topology has this membership", got)
	}
}

// A membership that follows on another one, with nothing in between, takes over nothing: to
// other hosts the activation's owner has ended.
func TestMembershipAfterMembership(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.activated()
	d.take(d.core.SetMembership(9, d.now.Boot+10*time.Second, d.now))
	d.take(d.core.UpdateTopology([]Host{serving("me:1", 9)}, d.now))
	if _, relied := d.core.Check(room, 5, d.now); relied {
		t.Error("the activation of the membership before may still be relied on")
	}
	d.answer(Passivate, Result{})
	d.answer(Remove, Result{})
	d.idle()
}

// What a process ended itself is removed; an earlier activation's end is nothing.
func TestEnded(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.activated()
	d.take(d.core.Ended(room, 4, d.now))
	d.idle()
	d.take(d.core.Ended(room, 5, d.now))
	d.pending() // asked meanwhile
	if c := d.answer(Remove, Result{}); !c.Keep {
		t.Error("the snapshot is lost")
	}
	d.done = d.done[1:]
	d.failed(ErrLost)
}

// Only idle actors are passivated.
func TestPassivateIdle(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.activated()
	d.now.Boot += time.Second
	if _, err := d.resolve(); err != nil {
		t.Fatal(err)
	}
	d.now.Boot += time.Second
	d.take(d.core.PassivateIdle(2*time.Second, d.now))
	d.idle()
	d.take(d.core.PassivateIdle(time.Second, d.now))
	d.answer(Passivate, Result{}) // seed 004-19
	d.expect(Remove)
}

// PL-4.4: each resolve is told, in order, and everything else that happens.
func TestEvents(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.activated()
	d.now.UnixMS += 5
	d.take(d.core.PassivateIdle(0, d.now))
	d.answer(Passivate, Result{Err: errRefused})
	var kinds []EventKind
	for _, e := range d.core.DrainEvents() {
		kinds = append(kinds, e.Kind)
		if e.Key != room || e.Authority != "me:1" || e.ObservedMS == 0 {
			t.Errorf("told is %+v", e)
		}
		// Seed 004-63.
		if e.Kind == Passivated && (e.Reason != errRefused.Error() || e.ObservedMS != d.now.UnixMS || e.Token != 5) {
			t.Errorf("told is %+v", e)
		}
	}
	// Seeds 004-37 and 004-47.
	if want := []EventKind{Resolved, Activated, Resolved, Passivated}; !slices.Equal(kinds, want) {
		t.Errorf("told is %v, want %v", kinds, want)
	}
	if len(d.core.DrainEvents()) != 0 {
		t.Error("told twice")
	}
}

// PL-C2: results belong to requests.
func TestUnknownResults(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.pending()
	c := d.expect(TryAcquire)
	for _, r := range []Result{{ID: c.ID + 1}, {ID: 0}} {
		d.take(d.core.HandleResult(r, d.now))
		d.idle()
	}
	d.take(d.core.HandleResult(Result{ID: c.ID, Lease: Lease{"l", 5}}, d.now))
	d.expect(Load)
	d.take(d.core.HandleResult(Result{ID: c.ID, Lease: Lease{"l", 5}}, d.now)) // twice
	d.idle()
	if s := d.core.Overview(d.now); s.Ignored != 3 {
		t.Errorf("ignored are %d", s.Ignored)
	}
}
