package eventloop

import "golang.org/x/sys/unix"

// Again gives the descriptor's Handler another turn, after all that are ready now. A
// Handler that asks twice before has one.
func (l *Loop) Again(fd int) {
	if s := &l.slots[fd]; s.handler != nil && !s.asked {
		s.asked = true
		l.again = append(l.again, unix.EpollEvent{Fd: int32(fd), Pad: int32(s.generation)})
	}
}

// giveTurns gives each Handler that has asked for another turn one. Those that ask during
// theirs are behind the events that have come meanwhile.
func (l *Loop) giveTurns() {
	turns := l.again
	l.again = l.spare[:0]
	for _, turn := range turns {
		if s := &l.slots[turn.Fd]; s.generation == uint32(turn.Pad) {
			s.asked = false
		}
		l.call(turn)
	}
	l.spare = turns
}
