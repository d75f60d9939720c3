package keeper

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

// table drives a core by hand. answers are what comes of actions, by their names;
// an action that is not among them succeeds.
type table struct {
	core    *Core
	at      Moment
	answers map[string]Event
	halts   string // the action during which the keeper is told to end
	next    int64  // machine ID
}

func newTable() *table {
	tb := &table{at: Moment{MS: startMS, LastMS: startMS}, answers: map[string]Event{}}
	saved := state.Saved{Timeline: snowflake.DefaultTimeline(), Source: state.SourceConfig}
	tb.core, _ = NewCore(Config{
		Service: service, MaxThroughput: 256, RetryInterval: time.Second, RetryMax: time.Minute, VerifyEvery: time.Hour,
	}, saved, rand.New(rand.NewPCG(1, 2)), tb.at)
	return tb
}

func (tb *table) pass(d time.Duration) {
	tb.at.MS, tb.at.LastMS, tb.at.Elapsed = tb.at.MS+d.Milliseconds(), tb.at.LastMS+d.Milliseconds(), tb.at.Elapsed+d
}

// grant is an answer of the provider.
func (tb *table) grant() Acquired {
	tb.next++
	return Acquired{Leases: []lease.Lease{provider.DefaultTerms().Grant(tb.next, tb.at.MS, "0123456789abcdef0123456789abcdef")}}
}

// turn returns the names of the actions that follow from the event.
func (tb *table) turn(e Event) (names []string) {
	for {
		action := tb.core.Handle(tb.at, e)
		name := fmt.Sprintf("%T", action)[len("keeper."):]
		if p, ok := action.(Publish); ok && len(p.Held) == 0 && p.Cached == nil {
			name = "Seal"
		}
		names = append(names, name)
		tb.at.Halt = tb.at.Halt || name == tb.halts
		switch a := action.(type) {
		case Publish:
			e = Published{}
		case Save:
			e = Saved{}
		case Confirm:
			e = Confirmed(a)
		case Acquire:
			e = tb.grant()
		case Verify:
			e = Verified{}
		case Release:
			e = Released{}
		default:
			return names
		}
		if answer, ok := tb.answers[name]; ok {
			e = answer
		}
	}
}

func (tb *table) want(t *testing.T, e Event, want ...string) {
	t.Helper()
	if got := tb.turn(e); !slices.Equal(got, want) {
		t.Errorf("after %T: %v, want %v", e, got, want)
	}
}

// TestOrderOfActions: a lease is in the live state before it is used. Where one
// goes back the generator is cut off from it, then the live state forgets it, then
// the release is sent.
func TestOrderOfActions(t *testing.T) {
	tb := newTable()
	tb.want(t, Tick{}, "Acquire", "Confirm", "Save", "Publish", "Sleep")
	tb.pass(renewal)
	tb.want(t, Tick{}, "Acquire", "Confirm", "Save", "Publish", "Publish", "Save", "Release", "Sleep")
	tb.want(t, Stop{}, "Seal", "Verify", "Save", "Release", "Done")
}

// TestNothingIsSentThatWasNotForgotten: after a write that failed no release
// follows.
func TestNothingIsSentThatWasNotForgotten(t *testing.T) {
	tb := newTable()
	tb.turn(Tick{})
	tb.answers["Save"] = Saved{errDisk}
	tb.pass(renewal)
	tb.want(t, Tick{}, "Acquire", "Confirm", "Save", "Publish", "Publish", "Save", "Sleep")
	tb.want(t, Stop{}, "Seal", "Verify", "Save", "Done")
}

// TestHaltedKeeperCallsNobody: leases granted already are used, and no call begins.
func TestHaltedKeeperCallsNobody(t *testing.T) {
	tb := newTable()
	tb.at.Halt = true
	tb.want(t, Tick{}, "Sleep")
	tb.at.Halt = false
	tb.turn(Tick{})
	tb.at.Halt = true
	tb.want(t, Stop{}, "Seal", "Done")
}

// TestStoppedInTheMiddleOfAHandBack: no further release is sent, so the leases that are sealed and
// forgotten run out by themselves. The stop gives back the others.
func TestStoppedInTheMiddleOfAHandBack(t *testing.T) {
	tb := newTable()
	tb.core.cfg.MaxThroughput *= 3
	three := func() Acquired {
		return Acquired{Leases: slices.Concat(tb.grant().Leases, tb.grant().Leases, tb.grant().Leases)}
	}
	tb.answers["Acquire"] = three()
	tb.want(t, Tick{}, "Acquire", "Confirm", "Save", "Publish", "Sleep")
	tb.pass(renewal)
	tb.answers["Acquire"], tb.halts = three(), "Release"
	tb.want(t, Tick{}, "Acquire", "Confirm", "Save", "Publish", "Publish", "Save", "Release", "Sleep")
	tb.at.Halt, tb.halts = false, ""
	tb.want(t, Stop{}, "Seal", "Verify", "Save", "Release", "Save", "Release", "Save", "Release", "Done")
}

// TestStopOutOfTime: a release that the stop has no time for is not sent, and its lease stays for
// the next start.
func TestStopOutOfTime(t *testing.T) {
	tb := newTable()
	tb.turn(Tick{})
	tb.halts = "Save"
	tb.want(t, Stop{}, "Seal", "Verify", "Save", "Save", "Done")
	if held := len(tb.core.saved.Held); held != 1 {
		t.Errorf("%d leases are kept for the next start, want 1", held)
	}
}

// Hosts that a provider has refused in one second come back over many, also hosts that have
// failed for some time.
func TestHostsComeBackApart(t *testing.T) {
	for _, failures := range []int{0, 5} {
		var first, last time.Duration
		for host := range uint64(20) {
			c := newTable().core
			c.rnd, c.failures = rand.New(rand.NewPCG(host, 2)), failures
			c.failed(&provider.BusyError{RetryAfter: time.Second, Reason: "too many requests"})
			if host == 0 {
				first = c.notBefore
			}
			first, last = min(first, c.notBefore), max(last, c.notBefore)
		}
		if first < time.Second || last-first < 6*time.Second { // seed 000-5.7-1
			t.Errorf("after %d failures, 20 hosts come back between %v and %v", failures, first, last)
		}
	}
}
