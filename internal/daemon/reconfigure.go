package daemon

import (
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Limits are what of a Server's Config may change while it serves.
type Limits struct {
	AllowUIDs, AllowGIDs []uint32
	MaxConnections       int
	MaxInFlight          int
	DrainTimeout         time.Duration
}

// SetLimits replaces the limits, for connections and requests that come from now
// on: those that are there already stay. l's slices must not be changed.
func (s *Server) SetLimits(l Limits) { s.limits.Store(&l) }

// DrainTimeout is how long a drain that begins now may take.
func (s *Server) DrainTimeout() time.Duration { return s.limits.Load().DrainTimeout }

// Prepare reads what other settings need, and returns what brings them into
// force: apply cannot fail. secret reports that the secret for external IDs is
// another one, though its file may be the same.
//
// bit_ts, default_epoch and startup_wait are of the service's start, and without
// effect here.
func (s *Service) Prepare(settings config.Service) (apply func(), secret bool, err error) {
	codec, err := LoadCodec(settings.ExternalSecretFile, s.name)
	if err != nil {
		return nil, false, fmt.Errorf("external_secret_file: %w", err)
	}
	return func() {
		s.settings.Store(&settings)
		s.external.Store(&codec)
		s.gen.SetConfig(streamConfig(settings, s.keeper == nil))
		if s.keeper != nil {
			s.keeper.SetConfig(s.supplyConfig(settings))
		}
	}, !same(codec, *s.external.Load()), nil
}

// same reports whether two codecs have the same secret: others do not agree on 128
// bits.
func same(a, b snowflake.Codec) bool { return a.Encode(0) == b.Encode(0) && a.Encode(1) == b.Encode(1) }

// KeeperTurns counts the turns of what supplies the service with leases, nil
// where there is nothing to supply it from.
func (s *Service) KeeperTurns() func() uint64 {
	if s.keeper == nil {
		return nil
	}
	return s.keeper.Turns
}
