package search

import (
	"fmt"
	"strings"
	"testing"
)

// world is what a search explores. It is made anew for each way and thrown away after
// it, so looking at it may spoil it.
type world interface {
	// moves appends what can happen next. Worlds with the same fingerprint have the same.
	moves([]move) []move
	do(move)
	text(move) string
	// fingerprint tells worlds apart that can have different futures.
	fingerprint() fingerprint
	// broken says which promise is broken, "" if all are kept. It may spoil the world.
	broken() string
}

// ending is a world that has something to end.
type ending interface{ end() }

// drop ends a world.
func drop(w world) {
	if w, ok := w.(ending); ok {
		w.end()
	}
}

// move is one thing that can happen. Each world gives the numbers a meaning.
type move struct {
	kind, who int8
	at        int8 // what the clock shows that is looked at; noClock: none is
}

const noClock = -1

// node is a state, as the way that led there first.
type node struct {
	parent int32
	move   move
}

// outcome is what a search has seen.
type outcome struct {
	states int  // different ones
	moves  int  // that were tried
	depth  int  // of the deepest state whose moves were all tried
	whole  bool // there is no other state
	fault  string
	story  []string // the moves that led to the fault
}

// explore tries every order of at most depth moves, the shortest first. It ends at the
// first broken promise.
func explore(begin func() world, depth int) (o outcome) {
	nodes, seen := []node{{parent: -1}}, map[fingerprint]struct{}{}
	w := begin()
	seen[w.fingerprint()] = struct{}{}
	drop(w)
	var next []move
	for from := 0; o.depth < depth; o.depth++ {
		to := len(nodes)
		for at := from; at < to; at++ {
			way := wayTo(nodes, at)
			w := replay(begin, way)
			next = w.moves(next[:0])
			drop(w)
			for _, m := range next {
				w := replay(begin, append(way, m))
				o.moves++
				mark := w.fingerprint()
				_, known := seen[mark]
				if !known {
					seen[mark] = struct{}{}
					nodes = append(nodes, node{int32(at), m})
					o.fault = w.broken()
				}
				drop(w)
				if o.fault != "" {
					o.states, o.depth, o.story = len(nodes), o.depth+1, tell(begin, append(way, m))
					return o
				}
			}
		}
		o.states = len(nodes)
		if o.whole = to == len(nodes); o.whole {
			return o
		}
		from = to
	}
	return o
}

// wayTo is the moves that lead to a state.
func wayTo(nodes []node, at int) []move {
	n := 0
	for i := at; nodes[i].parent >= 0; i = int(nodes[i].parent) {
		n++
	}
	way := make([]move, n, n+1)
	for i := at; nodes[i].parent >= 0; i = int(nodes[i].parent) {
		n--
		way[n] = nodes[i].move
	}
	return way
}

func replay(begin func() world, way []move) world {
	w := begin()
	for _, m := range way {
		w.do(m)
	}
	return w
}

// tell lists the moves of a way.
func tell(begin func() world, way []move) (story []string) {
	w := begin()
	for _, m := range way {
		line := w.text(m)
		if m.at != noClock {
			line += fmt.Sprintf("; the clock shows %d", m.at)
		}
		story = append(story, line)
		w.do(m)
	}
	drop(w)
	return story
}

// mustHold fails the test where a promise is broken within the depth.
func mustHold(t *testing.T, name string, begin func() world, depth int) {
	t.Helper()
	o := explore(begin, depth)
	if o.fault != "" {
		t.Fatalf("%s: %s\n%s", name, o.fault, strings.Join(o.story, "\n"))
	}
	end := fmt.Sprintf("every order of %d moves", o.depth)
	if o.whole {
		end = "every state there is"
	}
	t.Logf("%-40s %9d states %10d moves  %s", name, o.states, o.moves, end)
}
