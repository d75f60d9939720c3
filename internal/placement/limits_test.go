package placement

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// docs/placement.md tells of the limits as they are, and of what can be under way.
func TestPageShowsTheLimits(t *testing.T) {
	page, err := os.ReadFile("../../docs/placement.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{
		fmt.Sprintf("| kind | 1 to %d bytes", MaxKind), fmt.Sprintf("| identity | 1 to %d bytes", MaxIdentity),
		fmt.Sprintf("| authority | up to %d bytes", MaxAuthority), fmt.Sprintf("| pid | 1 to %d bytes", MaxPID),
		fmt.Sprintf("| snapshot | up to %d KiB", MaxSnapshot>>10), fmt.Sprintf("| promise of a Check | %d s", MaxPromise/time.Second),
	}
	for _, s := range []step{acquiring, loading, checking, reserving, ensuring, recording, releasing, resting, passivating, removing, retrying} {
		shown = append(shown, string(s))
	}
	for _, reason := range []string{HostStops, MembershipEnded, OtherAuthority, NoAuthority, NotAskedFor, LetGo, ProcessGone} {
		shown = append(shown, "`"+reason+"`")
	}
	for _, text := range shown {
		if !strings.Contains(string(page), text) {
			t.Errorf("the page does not have %q", text)
		}
	}
}

// A snapshot that is too long must not make a record that no store takes: it would go
// on naming this host, and no other host could have the key.
func TestSnapshotThatIsTooLong(t *testing.T) {
	d := newDesk(t)
	d.member()
	d.activated()
	d.take(d.core.PassivateIdle(0, d.now))
	d.answer(Passivate, Result{Snapshot: make([]byte, MaxSnapshot+1)})
	if c := d.answer(Remove, Result{}); c.Record.Validate() != nil || !c.Keep {
		t.Errorf("removed is %v, kept: %v", c.Record.Validate(), c.Keep)
	}
	events := d.core.DrainEvents()
	if last := events[len(events)-1]; last.Kind != Passivated || !strings.Contains(last.Reason, "65537 bytes") {
		t.Errorf("told is %+v", last)
	}
}

// The longest answers are taken.
func TestAnswersAtTheLimit(t *testing.T) {
	d := newDesk(t)
	d.reserved()
	d.answer(Ensure, Result{PID: strings.Repeat("p", MaxPID)})
	d.answer(Store, Result{})
	d.answer(Release, Result{})
	d.take(d.core.PassivateIdle(0, d.now))
	d.answer(Passivate, Result{Snapshot: make([]byte, MaxSnapshot)})
	if c := d.answer(Remove, Result{}); c.Record.Validate() != nil || c.Keep || len(c.Record.Snapshot) != MaxSnapshot {
		t.Errorf("removed is %v, kept: %v", c.Record.Validate(), c.Keep)
	}
}

// A process that has nothing to leave, or has never known the key, leaves the
// snapshot that is stored; an empty one replaces it.
func TestSnapshotsThatAreKept(t *testing.T) {
	for _, test := range []struct {
		answer Result
		keep   bool
	}{
		{Result{}, true}, {Result{Err: errors.New("no answer")}, true}, {Result{Snapshot: []byte{}}, false}, {Result{Snapshot: []byte("s")}, false},
	} {
		d := newDesk(t)
		d.member()
		d.activated()
		d.take(d.core.PassivateIdle(0, d.now))
		d.answer(Passivate, test.answer)
		if c := d.answer(Remove, Result{}); c.Keep != test.keep || string(c.Record.Snapshot) != string(test.answer.Snapshot) {
			t.Errorf("%+v: kept: %v, stored is %q", test.answer, c.Keep, c.Record.Snapshot)
		}
	}
}

// An actor that is not on record yet is told to no one: the store may yet refuse it.
func TestNothingIsResolvedBeforeItIsRecorded(t *testing.T) {
	d := newDesk(t)
	d.reserved()
	d.pending()
	d.answer(Ensure, Result{PID: "pid"})
	d.pending()
	d.answer(Store, Result{})
	if r, err := d.resolve(); err != nil || r.PID != "pid" {
		t.Errorf("resolved to %+v, %v", r, err)
	}
	d.answer(Release, Result{})
}
