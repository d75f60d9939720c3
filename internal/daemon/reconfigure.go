package daemon

import (
	"time"

	"go.uber.org/zap"
)

// Allow replaces the users and groups that may connect: Limits says what they mean. The
// connections of others end. The slices must not be changed.
func (s *Server) Allow(uids, gids []uint32) {
	limits := *s.limits.Load()
	limits.AllowUIDs, limits.AllowGIDs = uids, gids
	s.limits.Store(&limits)
	if n := s.bounds.dismiss(); n > 0 {
		s.log.Warn("connections closed: their peers are not allowed any more", zap.Int("connections", n))
	}
}

// DrainTimeout is how long a drain may take.
func (s *Server) DrainTimeout() time.Duration { return s.limits.Load().DrainTimeout }
