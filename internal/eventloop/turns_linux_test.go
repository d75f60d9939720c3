package eventloop

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// busy has a share with so many Turns that each ask again as often, spend so much, and note
// the share's name.
func busy(l *Loop, name string, turns, times, spend int, line *[]string) *Share {
	s := &Share{}
	for range turns {
		left := times
		turn := &Turn{Share: s}
		turn.Handler = handler(func(uint32) {
			*line = append(*line, name)
			l.Spend(spend)
			if left--; left > 0 {
				l.Again(turn)
			}
		})
		l.Again(turn)
	}
	return s
}

func count(line []string, name string) (n int) {
	for _, one := range line {
		if one == name {
			n++
		}
	}
	return n
}

// perLook is how many turns there are between two looks in a driven loop.
const perLook = 16

// driven is a loop that nobody runs: the test gives the turns, which take equally long.
func driven(t *testing.T) *Loop {
	t.Helper()
	l, err := New()
	must.Succeed(t, err)
	t.Cleanup(l.close)
	var now time.Duration
	l.elapsed = func() time.Duration {
		now += lookEvery / perLook
		return now
	}
	return l
}

// A thousand busy connections of one owner get as many turns as the few of another.
func TestSharesAreEven(t *testing.T) {
	l := driven(t)
	var line []string
	busy(l, "many", 1000, 50, 0, &line)
	busy(l, "few", 4, 1000, 0, &line)
	for len(line) < 2000 {
		l.giveTurns()
	}
	if few := count(line, "few"); few < 900 || few > 1100 {
		t.Errorf("the few have %d of %d turns", few, len(line))
	}
}

// And turns that cost much are fewer.
func TestSharesCountWhatTurnsCost(t *testing.T) {
	l := driven(t)
	var line []string
	const cost = 99 * turnCost
	busy(l, "dear", 10, 1000, cost, &line)
	busy(l, "cheap", 10, 10_000, 0, &line)
	for len(line) < 10_000 {
		l.giveTurns()
	}
	if dear := count(line, "dear"); dear < 80 || dear > 120 {
		t.Errorf("turns of a hundred times the cost are %d of %d", dear, len(line))
	}
}

// Nor does it help to ask again only when all turns have been given: debts are kept.
func TestSharesKeepTheirDebts(t *testing.T) {
	l := driven(t)
	var line []string
	const cost = 99 * turnCost
	busy(l, "cheap", 10, 10_000, 0, &line)
	dear := &Share{}
	for len(line) < 10_000 {
		if !dear.listed {
			l.Again(&Turn{Share: dear, Handler: handler(func(uint32) {
				line = append(line, "dear")
				l.Spend(cost)
			})})
		}
		l.giveTurns()
	}
	if dear := count(line, "dear"); dear < 50 || dear > 120 {
		t.Errorf("turns of a hundred times the cost are %d of %d", dear, len(line))
	}
}

// Who asks for little comes at once, however many owners are busy.
func TestFreshSharesComeFirst(t *testing.T) {
	l := driven(t)
	var line []string
	for i := range 20 {
		busy(l, fmt.Sprint("busy", i), 100, 1000, quantum, &line)
	}
	for range 100 {
		l.giveTurns()
	}
	for range 10 {
		line = line[:0]
		busy(l, "modest", 1, 1, 0, &line)
		l.giveTurns()
		if slices.Index(line, "modest") != 0 {
			t.Errorf("the modest one comes behind %d turns", slices.Index(line, "modest"))
		}
	}
	// But nobody is fresh who asks again and again.
	line = line[:0]
	s := busy(l, "eager", 1, 1, quantum, &line)
	for range 1000 {
		l.giveTurns()
		if s.turns.empty() {
			l.Again(&Turn{Share: s, Handler: handler(func(uint32) {
				line = append(line, "eager")
				l.Spend(quantum)
			})})
		}
	}
	if eager := count(line, "eager"); eager > len(line)/15 {
		t.Errorf("one of 21 owners has %d of %d turns", eager, len(line))
	}
}

// Events are looked for after some time, however many turns are due.
func TestTurnsBetweenLooks(t *testing.T) {
	for takes, most := range map[time.Duration]int{lookEvery / 10: 10, lookEvery - 1: 2, lookEvery: 1, 10 * lookEvery: 1} {
		l := driven(t)
		var now time.Duration
		l.elapsed = func() time.Duration { return now }
		given, share := 0, &Share{}
		for range 1000 {
			l.Again(&Turn{Share: share, Handler: handler(func(uint32) {
				given++
				now += takes
			})})
		}
		l.giveTurns()
		if given != most {
			t.Errorf("%d turns of %s are given, want %d", given, takes, most)
		}
		for l.turns.due() {
			l.giveTurns()
		}
		if given != 1000 {
			t.Errorf("%d turns of 1000 are given in the end", given)
		}
	}
}

// A loop that works without a pause lets the system choose another thread again and again.
func TestBusyLoopYields(t *testing.T) {
	for takes, want := range map[time.Duration]int{0: 0, lookEvery / yieldEvents: 8, lookEvery: 8} {
		l := driven(t)
		var now time.Duration
		yields := 0
		l.elapsed, l.yield = func() time.Duration { return now }, func() { yields++ }
		here, _ := socketpair(t)
		must.Succeed(t, l.Add(here, handler(func(uint32) { now += takes })))
		event := unix.EpollEvent{Fd: int32(here), Pad: int32(l.slots[here].generation)}
		l.dispatchAll(slices.Repeat([]unix.EpollEvent{event}, 10*yieldEvents))
		if yields != want {
			t.Errorf("with events of %s the loop has yielded %d times, want %d", takes, yields, want)
		}
	}

	l, _ := start(t)
	turns, yields := 0, 0
	on(t, l, func() {
		l.elapsed = func() time.Duration { return time.Duration(turns) * lookEvery / perLook }
		l.yield = func() { yields++ }
		share := &Share{}
		for range 10*perLook + 1 {
			l.Again(&Turn{Share: share, Handler: handler(func(uint32) { turns++ })})
		}
	})
	for waits := true; waits; {
		on(t, l, func() { waits = l.turns.due() })
	}
	if yields != 10 {
		t.Errorf("with turns that are due the loop has yielded %d times, want 10", yields)
	}
}
