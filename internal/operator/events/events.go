// Package events logs the operations of locks and sequences. docs/logs.md lists all
// events.
//
// Successes and mistakes of callers are Debug: otherwise any client could fill the
// log. Failures of the store are Errors. An outage makes one for every request, so
// only a few are logged, with the number of those left out.
package events

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/time/rate"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/storecall"
)

// The first lines of one kind of failure are logged at once, then one per pause.
const (
	failureBurst = 3
	failurePause = 10 * time.Second
)

// sparing logs one kind of failure, within these limits.
type sparing struct {
	log      *zap.Logger
	limit    *rate.Limiter
	unlogged atomic.Int64
	level    zapcore.Level
	message  string
}

func newSparing(log *zap.Logger, level zapcore.Level, message string) *sparing {
	return &sparing{log: log, limit: rate.NewLimiter(rate.Every(failurePause), failureBurst), level: level, message: message}
}

func (s *sparing) say(fields ...zap.Field) {
	if !s.limit.Allow() {
		s.unlogged.Add(1)
		return
	}
	if n := s.unlogged.Swap(0); n > 0 {
		fields = append(fields, zap.Int64("unmentioned", n))
	}
	s.log.Log(s.level, s.message, fields...)
}

// lockVerbs are the events of a failed and of a successful operation.
var lockVerbs = map[string]struct{ failed, done string }{
	"acquire": {"failed to acquire lock", "lock acquired"},
	"renew":   {"failed to renew lock", "lock renewed"},
	"release": {"failed to release lock", "lock released"},
	"get":     {"failed to read lock", ""},
	"list":    {"failed to list locks", ""},
}

// Locks logs the operations of a store of locks, and passes the duration of each to
// called, which is optional.
func Locks(log *zap.Logger, called func(op string, took time.Duration)) lock.Observer {
	log = log.With(zap.String("component", "locks"))
	failures := map[string]*sparing{}
	for name, verbs := range lockVerbs {
		failures[name] = newSparing(log, zap.ErrorLevel, verbs.failed)
	}
	return lock.Observer{After: func(_ context.Context, o lock.Operation) {
		if called != nil {
			called("lock_"+o.Name, o.Took)
		}
		outcome := lock.Outcome(o.Err)
		switch done := lockVerbs[o.Name].done; {
		case storecall.Failed(outcome):
			failures[o.Name].say(zap.String("key", o.Request.Key), zap.String("outcome", outcome), zap.Error(o.Err))
		case o.Err == nil && done != "":
			if line := log.Check(zap.DebugLevel, done); line != nil {
				line.Write(zap.String("key", o.Request.Key), zap.String("owner", o.Request.Owner), zap.Int64("fencing_token", o.Answer.Token),
					zap.Int64("expires_in_ms", o.Answer.RemainingMS), zap.Bool("repeated", o.Answer.Repeated), zap.Duration("took", o.Took))
			}
		case o.Err != nil:
			if line := log.Check(zap.DebugLevel, "lock request refused"); line != nil {
				line.Write(zap.String("op", o.Name), zap.String("key", o.Request.Key), zap.String("owner", o.Request.Owner),
					zap.String("outcome", outcome), zap.Error(o.Err))
			}
		}
	}}
}

// SequenceCalls passes the duration of each call of a store of sequences to called.
func SequenceCalls(called func(op string, took time.Duration)) sequence.Observer {
	return sequence.Observer{After: func(_ context.Context, o sequence.Operation) { called("sequence_"+o.Name, o.Took) }}
}

// Sequences logs the requests for values.
func Sequences(log *zap.Logger) sequence.Observer {
	log = log.With(zap.String("component", "sequences"))
	failed := newSparing(log, zap.ErrorLevel, "failed to increment sequence")
	unreset := newSparing(log, zap.ErrorLevel, "failed to reset sequence")
	unlimited := newSparing(log, zap.WarnLevel, "failed to set ttl")
	stuck := newSparing(log, zap.WarnLevel, "sequence hands out nothing")
	return sequence.Observer{After: func(_ context.Context, o sequence.Operation) {
		outcome := sequence.Outcome(o.Err)
		key := zap.String("key", o.Request.Key)
		switch {
		case o.Err == nil && o.Name == "declare":
			log.Info("sequence reset", key, zap.String("options", o.Request.Options.Text()))
		case o.Err == nil:
			generated(log, o)
		case o.Name == "declare" && storecall.Failed(outcome):
			unreset.say(key, zap.String("outcome", outcome), zap.Error(o.Err))
		case storecall.Failed(outcome):
			// Reset and TTL are parts of the one step that has failed.
			if errors.Is(o.Err, sequence.ErrReset) {
				unreset.say(key, zap.String("outcome", outcome), zap.Error(o.Err))
			}
			if ttl := o.Request.Options.TTL; ttl > 0 {
				unlimited.say(key, zap.Duration("ttl", ttl), zap.Error(o.Err))
			}
			failed.say(key, zap.Int("count", o.Request.Count), zap.String("outcome", outcome), zap.Error(o.Err))
		case outcome == "exhausted", outcome == "fenced": // it takes an operator to end that
			stuck.say(key, zap.String("outcome", outcome), zap.Error(o.Err))
		default:
			if line := log.Check(zap.DebugLevel, "sequence request refused"); line != nil {
				line.Write(key, zap.String("outcome", outcome), zap.Error(o.Err))
			}
		}
	}}
}

func generated(log *zap.Logger, o sequence.Operation) {
	if o.Answer.Count == 1 {
		if line := log.Check(zap.DebugLevel, "generated sequence number"); line != nil {
			line.Write(zap.String("key", o.Request.Key), zap.Int64("value", o.Answer.First))
		}
		return
	}
	if line := log.Check(zap.DebugLevel, "generated sequence batch"); line != nil {
		line.Write(zap.String("key", o.Request.Key), zap.Int64("first", o.Answer.First), zap.Int64("last", o.Answer.Last()),
			zap.Int("count", o.Answer.Count))
	}
}
