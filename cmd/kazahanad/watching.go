package main

import (
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/events"
	"github.com/kazahana/kazahana/internal/operator/tracing"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/stores"
)

// watching adds metrics, logs and traces to locks, sequences and activation records.
type watching struct {
	tracing *tracing.Tracing
	log     *zap.Logger
	called  func(op string, took time.Duration) // after each call of the store; may be nil
}

// stores wraps the stores to watch their calls.
func (w watching) stores(s *stores.Store) {
	s.Locks = lock.Observed(w.tracing.Locks(s.Locks, s.URL), events.Locks(w.log, w.called))
	s.Sequences = w.tracing.Sequences(s.Sequences, s.URL)
	if w.called != nil {
		s.Sequences = sequence.Observed(s.Sequences, events.SequenceCalls(w.called))
		s.Placements = storage.Observed(s.Placements, func(op string, took time.Duration) { w.called("placement_"+op, took) })
	}
}

// sequences wraps the store to watch the values that it hands out.
func (w watching) sequences(s sequence.Store) sequence.Store {
	return sequence.Observed(s, events.Sequences(w.log))
}
