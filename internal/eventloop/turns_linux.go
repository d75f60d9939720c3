package eventloop

import "time"

const (
	// quantum is what a share may spend before it is the next one's turn.
	quantum = 16 << 10
	// turnCost is spent by every turn, for its system calls.
	turnCost = 1 << 10
	// lookEvery is how long turns go on, but for the last one, between two looks for events.
	lookEvery = 100 * time.Microsecond
)

// Share is the Turns of one owner, which share the loop's time evenly with those of each
// other owner, however many they are. It belongs to one loop.
type Share struct {
	turns  queue[*Turn]
	credit int // what it may spend still; below 0, what it has spent too much
	listed bool
}

// Turn is a Handler's place in the queue of Handlers that asked for another turn. Each
// belongs to one Handler, which asks at most once at a time.
type Turn struct {
	Handler Handler
	Share   *Share
	asked   bool
}

// turns are all that are due. Who has asked for nothing lately comes first, and goes behind
// the others when its quantum is spent.
type turns struct {
	fresh, busy queue[*Share]
	spent       int // by all so far
}

func (t *turns) due() bool { return !t.fresh.empty() || !t.busy.empty() }

// Again gives another turn to the Handler, after those of its share that have asked before.
func (l *Loop) Again(t *Turn) {
	if t.asked {
		return
	}
	t.asked = true
	s := t.Share
	s.turns.push(t)
	if !s.listed {
		s.listed = true
		s.credit += quantum
		l.turns.fresh.push(s)
	}
}

// Spend tells what the present turn costs beside its system calls, such as bytes that were
// read and written.
func (l *Loop) Spend(n int) { l.turns.spent += n }

// Spent is what all turns have spent so far.
func (l *Loop) Spent() int { return l.turns.spent }

// giveTurns gives some turns. Then the loop looks for events: who asks for little is not
// behind all who ask for much.
func (l *Loop) giveTurns() {
	t := &l.turns
	for began := l.elapsed(); t.due(); {
		list := &t.fresh
		if list.empty() {
			list = &t.busy
		}
		s := list.first()
		switch {
		case s.turns.empty() && (list == &t.busy || t.busy.empty()):
			list.pop()
			s.listed, s.credit = false, min(s.credit, 0) // asking again does not end its debts
		case s.turns.empty(): // it does not become fresh by asking again at once
			list.pop()
			t.busy.push(s)
		case s.credit <= 0:
			s.credit += quantum
			list.pop()
			t.busy.push(s)
		default:
			before := t.spent
			t.spent += turnCost
			turn := s.turns.pop()
			turn.asked = false
			turn.Handler.Ready(0)
			s.credit -= t.spent - before
			if l.elapsed()-began >= lookEvery {
				return
			}
		}
	}
}

// queue is first in, first out.
type queue[T any] struct {
	all  []T
	head int
}

func (q *queue[T]) empty() bool { return q.head == len(q.all) }
func (q *queue[T]) first() T    { return q.all[q.head] }
func (q *queue[T]) push(t T)    { q.all = append(q.all, t) }

func (q *queue[T]) pop() T {
	var none T
	t := q.all[q.head]
	q.all[q.head] = none
	if q.head++; q.head > len(q.all)/2 {
		clear(q.all[copy(q.all, q.all[q.head:]):])
		q.all, q.head = q.all[:len(q.all)-q.head], 0
	}
	return t
}
