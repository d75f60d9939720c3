package daemon

import (
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/unixsock"
)

// progress counts the turns of the loops without which nobody is served.
type progress struct {
	accept, lane atomic.Uint64
	listener     atomic.Pointer[unixsock.Listener]
	serving      chan struct{} // closed when connections are accepted
}

func (p *progress) begin(l *unixsock.Listener) {
	p.listener.Store(l)
	close(p.serving)
}

// Serving is closed when connections are accepted.
func (s *Server) Serving() <-chan struct{} { return s.progress.serving }

// AcceptTurns grows while connections can be accepted: with each of them, and
// after each Prod.
func (s *Server) AcceptTurns() uint64 { return s.progress.accept.Load() }

// LaneTurns grows after each Prod while the event loop goes on, or there is none.
func (s *Server) LaneTurns() uint64 { return s.progress.lane.Load() }

// Prod has each of the server's loops take a turn soon, if it still can.
func (s *Server) Prod() {
	if l := s.progress.listener.Load(); l != nil {
		_ = l.SetDeadline(time.Now()) // ends the wait for a connection
	}
	s.mu.Lock()
	lane := s.lane
	s.mu.Unlock()
	turn := func() { s.progress.lane.Add(1) }
	if lane == nil {
		turn()
		return
	}
	lane.prod(turn)
}
