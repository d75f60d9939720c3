package daemon

import (
	"time"

	"go.uber.org/zap"
)

// SetLimits replaces the limits, for connections and requests that come from now on. The
// connections of peers that are not allowed any more end; others stay. l's slices must not
// be changed.
func (s *Server) SetLimits(l Limits) {
	s.limits.Store(&l)
	if n := s.bounds.dismiss(); n > 0 {
		s.log.Warn("connections closed: their peers are not allowed any more", zap.Int("connections", n))
	}
}

// DrainTimeout is how long a drain that begins now may take.
func (s *Server) DrainTimeout() time.Duration { return s.limits.Load().DrainTimeout }
