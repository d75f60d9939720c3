package eventloop

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Handlers that ask again and again have their turns in a circle. A handler that has become
// ready meanwhile comes before the next turn.
func TestTurnsAreACircle(t *testing.T) {
	l, _ := start(t)
	here, there := [4]int{}, [4]int{}
	for i := range here {
		here[i], there[i] = socketpair(t)
	}
	var line []string
	on(t, l, func() {
		for i, name := range []string{"a", "b", "c"} {
			turns := 0
			_ = l.Add(here[i], handler(func(events uint32) {
				drain(here[i])
				line = append(line, name)
				if turns++; turns < 4 {
					l.Again(here[i])
					l.Again(here[i]) // which is no second turn
				}
				if name == "c" && turns == 2 {
					write(t, there[3], "x")
				}
			}))
			l.Again(here[i])
		}
		_ = l.Add(here[3], handler(func(uint32) {
			drain(here[3])
			line = append(line, "late")
		}))
	})
	for range 3 {
		settle(t, l)
	}
	on(t, l, func() {
		if got := strings.Join(line, " "); got != "a b c a b c late a b c a b c" {
			t.Errorf("turns: %s", got)
		}
	})
}

// A Handler that was removed has no turn any more, nor has a new one its predecessor's.
func TestTurnsOfTheRemoved(t *testing.T) {
	l, _ := start(t)
	here, _ := socketpair(t)
	var line []string
	on(t, l, func() {
		_ = l.Add(here, handler(func(uint32) { line = append(line, "old") }))
		l.Again(here)
		l.Remove(here)
		l.Again(here)
		_ = l.Add(here, handler(func(uint32) { line = append(line, "new") }))
	})
	settle(t, l)
	on(t, l, func() {
		if len(line) > 0 {
			t.Errorf("turns: %v", line)
		}
		l.Again(here)
	})
	settle(t, l)
	on(t, l, func() {
		if !slices.Equal(line, []string{"new"}) {
			t.Errorf("turns: %v", line)
		}
	})
}

// New data of one comes before the next turn of another that never has enough.
func TestTurnsStarveNobody(t *testing.T) {
	l, _ := start(t)
	here, there := socketpair(t)
	endless, _ := socketpair(t)
	heard := make(chan struct{}, 1)
	turns, most := 0, 0
	on(t, l, func() {
		_ = l.Add(endless, handler(func(uint32) {
			if turns++; turns%2 == 0 { // data is there when the loop looks for events next
				write(t, there, "x")
			}
			l.Again(endless)
		}))
		since := 0
		_ = l.Add(here, handler(func(uint32) {
			drain(here)
			most, since = max(most, turns-since), turns
			if turns >= 200 {
				l.Remove(endless)
				heard <- struct{}{}
			}
		}))
		l.Again(endless)
	})
	<-heard
	on(t, l, func() {
		if most > 2 {
			t.Errorf("%d turns of another came first", most)
		}
	})
	_ = unix.Close(there)
}
