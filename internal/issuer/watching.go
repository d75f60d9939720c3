package issuer

import (
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/events"
	"github.com/kazahana/kazahana/internal/operator/tracing"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/sequence"
)

// Watching adds metrics, logs and traces to locks, sequences and activation records.
type Watching struct {
	Tracing *tracing.Tracing // nil: none
	Log     *zap.Logger
	Called  func(op string, took time.Duration) // after each call of the store; may be nil
}

// stores wraps the stores to watch their calls.
func (w Watching) stores(s *backend.Store) {
	s.Locks = lock.Observed(w.Tracing.Locks(s.Locks, s.URL), events.Locks(w.Log, w.Called))
	s.Sequences = w.Tracing.Sequences(s.Sequences, s.URL)
	if w.Called != nil {
		s.Sequences = sequence.Observed(s.Sequences, events.SequenceCalls(w.Called))
		s.Placements = storage.Observed(s.Placements, func(op string, took time.Duration) { w.Called("placement_"+op, took) })
	}
}

// sequences wraps the store to watch the values that it hands out.
func (w Watching) sequences(s sequence.Store) sequence.Store {
	return sequence.Observed(s, events.Sequences(w.Log))
}
