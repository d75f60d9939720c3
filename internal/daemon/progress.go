package daemon

import (
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/unixsock"
)

// progress counts the turns of the loops that serve all peers.
type progress struct {
	accept, fastPath atomic.Uint64
	listener         atomic.Pointer[unixsock.Listener]
	serving          chan struct{} // closed when connections are accepted
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

// FastPathTurns grows after each Prod while the event loop goes on, or there is none.
func (s *Server) FastPathTurns() uint64 { return s.progress.fastPath.Load() }

// Prod has each of the server's loops take a turn soon, if it still can.
func (s *Server) Prod() {
	if l := s.progress.listener.Load(); l != nil {
		_ = l.SetDeadline(time.Now()) // ends the wait for a connection
	}
	s.mu.Lock()
	path := s.fastPath
	s.mu.Unlock()
	turn := func() { s.progress.fastPath.Add(1) }
	if path == nil {
		turn()
		return
	}
	path.prod(turn)
}
