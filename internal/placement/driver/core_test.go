package driver

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
)

// alone is the core of the only member, driven by hand.
type alone struct {
	*testing.T
	*Core
	now placement.Moment
}

func newAlone(t *testing.T) *alone {
	ids := 0
	a := &alone{T: t, now: placement.Moment{Boot: time.Hour}, Core: NewCore(Terms{
		Authority: "a:1", TTL: DefaultTTL, Interval: DefaultInterval,
		NewID: func() string { ids++; return fmt.Sprint(ids) },
	})}
	a.SetKinds([]string{"room"}, a.now)
	if fx := a.Start(a.now); fx.Ask == nil || fx.Ask.Op != lock.Acquire || !fx.Look {
		t.Fatalf("the first effects are %+v", fx)
	}
	a.Answered(lock.Acquire, lock.Lease{LeaseID: "1", Token: 1, RemainingMS: DefaultTTL.Milliseconds(), Note: "room"}, nil, a.now)
	a.Looked([]placement.Host{{Member: placement.Member{Authority: "a:1", Token: 1}, Kinds: []string{"room"}}}, nil, a.now)
	return a
}

// resolve asks for a room, and returns what follows.
func (a *alone) resolve(i int) []placement.Command {
	a.Helper()
	_, fx, err := a.Resolve(room(i), a.now)
	if !errors.Is(err, placement.ErrPending) {
		a.Fatalf("room %d: %v", i, err)
	}
	return fx.Begin
}

// pass lets time pass.
func (a *alone) pass(d time.Duration) Effects {
	a.now.Boot += d
	return a.Tick(a.now)
}

// A crowd of commands is carried out a few at a time.
func TestFewCommandsAtOnce(t *testing.T) {
	a := newAlone(t)
	var begun []placement.Command
	for i := range 1000 {
		begun = append(begun, a.resolve(i)...)
	}
	if len(begun) != maxCommands {
		t.Errorf("%d calls of the store at once, want %d", len(begun), maxCommands)
	}
	denied := placement.Result{Err: &lock.HeldError{}}
	for n := 1; len(begun) > 0; n++ {
		begun = append(begun[1:], a.Finished(begun[0], denied, a.now).Begin...)
		if want := min(maxCommands, 1000-n); len(begun) != want {
			t.Fatalf("%d are under way, want %d", len(begun), want)
		}
	}
}

// What has not begun at the stop does not begin, however slow the store is.
func TestStopBeginsNothing(t *testing.T) {
	a := newAlone(t)
	var begun []placement.Command
	for i := range MaxWaiting {
		begun = append(begun, a.resolve(i)...)
	}
	if fx := a.Stop(a.now); len(fx.Begin) != 0 || len(fx.Done) < MaxWaiting-maxCommands {
		t.Errorf("after the stop %d commands begin, and %d have ended", len(fx.Begin), len(fx.Done))
	}
	for _, c := range begun {
		for _, more := range a.Finished(c, placement.Result{Err: errStopping}, a.now).Begin {
			t.Errorf("after the stop there is %s", more.Op)
		}
	}
	fx := a.Answered(lock.Release, lock.Lease{}, nil, a.now)
	if !a.Idle() || !fx.Over {
		t.Error("the stop does not end")
	}
}

// Callers that do not wait cannot pile up activations without end.
func TestQueueIsBounded(t *testing.T) {
	a := newAlone(t)
	n := 0
	var err error
	var full *OverloadedError
	for ; !errors.As(err, &full) && n < 2*MaxWaiting; n++ {
		_, _, err = a.Resolve(room(n), a.now)
	}
	if n < MaxWaiting || n == 2*MaxWaiting {
		t.Errorf("%d activations were begun: %v", n, err)
	}
}

// The membership is given back when nothing is activated any more. A host with a process
// that has not let go in time keeps it: others wait for its end.
func TestMembershipIsGivenBackAtTheEnd(t *testing.T) {
	a := newAlone(t)
	for _, c := range a.resolve(1) {
		if c.Op != placement.TryAcquire {
			t.Fatalf("begun is %s", c.Op)
		}
	}
	if fx := a.Stop(a.now); fx.Over {
		t.Error("the end does not wait")
	}
	if fx := a.pass(stopTimeout - releaseTime); !fx.Over || fx.Ask != nil && fx.Ask.Op == lock.Release {
		t.Errorf("the end is %+v", fx)
	}
	b := newAlone(t)
	if fx := b.pass(DefaultTTL / renewPart); fx.Ask == nil || fx.Ask.Op != lock.Renew {
		t.Fatalf("the membership is not renewed: %+v", fx)
	}
	if fx := b.Stop(b.now); fx.Over || fx.Ask == nil || fx.Ask.Op != lock.Release || fx.Ask.LeaseID != "1" {
		t.Errorf("with nothing activated the end is %+v", fx)
	}
	if fx := b.Answered(lock.Renew, lock.Lease{LeaseID: "1", Token: 1}, nil, b.now); fx.Over {
		t.Error("the answer to a renewal ends the stop, and the membership is not given back yet")
	}
	if fx := b.Answered(lock.Release, lock.Lease{}, nil, b.now); !fx.Over {
		t.Error("the stop does not end")
	}
}

// Kinds are announced by a renewal at once, but not too often; a kind announced while a request
// was under way follows it.
func TestKindsAreAnnounced(t *testing.T) {
	a := newAlone(t)
	answer := func(note string) Effects {
		return a.Answered(lock.Renew, lock.Lease{LeaseID: "1", Token: 1, RemainingMS: DefaultTTL.Milliseconds(), Note: note}, nil, a.now)
	}
	if fx := a.pass(announcePause); fx.Ask != nil {
		t.Fatalf("what is announced is announced again: %+v", fx.Ask)
	}
	fx := a.SetKinds([]string{"room", "cart"}, a.now)
	if fx.Ask == nil || fx.Ask.Op != lock.Renew || fx.Ask.Note != "cart/room" || !fx.Ask.Announce {
		t.Fatalf("the renewal is %+v", fx.Ask)
	}
	if fx := a.SetKinds(nil, a.now); fx.Ask != nil {
		t.Fatal("two requests are under way")
	}
	a.Looked(nil, errStopping, a.now)
	if fx := answer("cart/room"); fx.Ask != nil || !fx.Look {
		t.Fatalf("after the announcement: %+v", fx)
	}
	if fx := a.pass(announcePause - 1); fx.Ask != nil {
		t.Fatalf("too soon: %+v", fx.Ask)
	}
	if fx := a.pass(1); fx.Ask == nil || fx.Ask.Note != "" {
		t.Fatalf("that there are none is not announced: %+v", fx.Ask)
	}
	answer("")
	if fx := a.pass(DefaultTTL/renewPart - 1); fx.Ask != nil {
		t.Errorf("before its time: %+v", fx.Ask)
	}
}
