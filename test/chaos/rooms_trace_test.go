package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/test/trace"
)

// checkSteps follows the processes' logs of each room through docs/model/Placement.tla.
// Memberships and records were not seen.
func (r roomRecord) checkSteps(res *roomResult) {
	for _, room := range slices.Sorted(maps.Keys(res.activationsOf)) {
		t := r.traceOf(res.activationsOf[room])
		got := t.Check()
		res.steps += len(t.Steps)
		for _, broken := range got.Broken {
			res.violates(roomsStep, "%s: %s", room, broken)
		}
	}
}

// life is the name of a host in the trace: a daemon that was killed is another one then.
func (r roomRecord) life(host roomHostNumber, at int64) string {
	lives := 0
	for _, w := range r.away {
		if w.host == host && !w.frozen && w.from < at {
			lives++
		}
	}
	return fmt.Sprintf("host %d in life %d", host, lives)
}

// traceOf makes the trace of one room.
func (r roomRecord) traceOf(all []roomActivation) trace.Placement {
	t := trace.Placement{Partial: true, Promise: placement.MaxPromise}
	byToken := slices.SortedFunc(slices.Values(all), func(a, b roomActivation) int { return cmp.Compare(a.token, b.token) })
	for i, a := range byToken {
		add := func(do string, at int64) {
			t.Steps = append(t.Steps, trace.PlaceStep{
				Do: do, At: time.Duration(at), Until: time.Duration(at) + 1, Host: r.life(a.host, a.begun), Token: a.token, Version: a.version,
			})
		}
		begun := a.begun
		if r.unaware(a) { // a process that was frozen logs late what its daemon had begun before
			for _, later := range byToken[i+1:] {
				begun = min(begun, later.begun-1)
			}
		}
		add("Activate", begun)
		for _, at := range a.relied {
			add("Check", at)
		}
		if a.ended != 0 {
			add("Stop", a.ended)
		}
	}
	return t
}

// TestRoomsSteps: a step that the specification does not allow is found, beside all other checks.
func TestRoomsSteps(t *testing.T) {
	if res := roomExample().check(); res.steps != 4+6+2 || res.count[roomsStep] > 0 {
		t.Errorf("without fault: %d steps, %q", res.steps, res.violations)
	}
	for name, test := range map[string]struct {
		put  func(f *forgedRooms)
		want string
	}{
		"somebody relies on what is over":  {func(f *forgedRooms) { f.activations[1].relied[1] = sec(27.3) }, "Check: host 1 in life 0 may rely on token 2"},
		"somebody wakes, and relies on it": {func(f *forgedRooms) { f.activations[0].relied[1] = sec(25.05) }, "Promised: host 0 in life 0 may rely on token 1"},
		"a token does not rise":            {func(f *forgedRooms) { f.activations[2].token = 2; f.store[7].Token = 2 }, "TokensRise: host 0 in life 0 activates token 2 after token 2"},
		"a host activates what it has":     {func(f *forgedRooms) { f.activations[0].ended = 0 }, "Activate: host 0 in life 0 activates token 3, and its process has token 1"},
		"an older token comes later": {func(f *forgedRooms) {
			f.activations[1].begun, f.activations[1].relied, f.activations[1].ended = sec(28), nil, sec(29)
		}, "TokensRise: host 1 in life 0 activates token 2 after token 3"},
	} {
		t.Run(name, func(t *testing.T) {
			f := roomExample()
			test.put(f)
			if res := f.check(); !strings.Contains(strings.Join(res.violations, "\n"), roomsStep) || !strings.Contains(strings.Join(res.violations, "\n"), test.want) {
				t.Errorf("found %q, want %q", res.violations, test.want)
			}
		})
	}
}
