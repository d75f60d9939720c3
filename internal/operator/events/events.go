// Package events logs the operations of locks and sequences. docs/logs.md lists all
// events.
//
// Successes and mistakes of callers are Debug: otherwise any client could fill the
// log. Failures of the store are Errors. An outage makes one for every request, so
// only a few are logged.
package events

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/storecall"
)

// The first lines of one kind of failure are logged in each pause.
const (
	failureBurst = 3
	failurePause = 10 * time.Second
)

// sparing logs each kind of failure within these limits.
func sparing(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, failurePause, failureBurst, 0)
	}))
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
	failures := sparing(log)
	return lock.Observer{After: func(_ context.Context, o lock.Operation) {
		if called != nil {
			called("lock_"+o.Name, o.Took)
		}
		outcome := lock.Outcome(o.Err)
		switch verbs := lockVerbs[o.Name]; {
		case storecall.Failed(outcome):
			failures.Error(verbs.failed, zap.String("key", o.Request.Key), zap.String("outcome", outcome), zap.Error(o.Err))
		case o.Err == nil && verbs.done != "":
			if line := log.Check(zap.DebugLevel, verbs.done); line != nil {
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
	failures := sparing(log)
	return sequence.Observer{After: func(_ context.Context, o sequence.Operation) {
		outcome := sequence.Outcome(o.Err)
		key := zap.String("key", o.Request.Key)
		switch {
		case o.Err == nil && o.Name == "declare":
			log.Info("sequence reset", key, zap.String("options", o.Request.Options.Text()))
		case o.Err == nil:
			generated(log, o)
		case o.Name == "declare" && storecall.Failed(outcome):
			failures.Error("failed to reset sequence", key, zap.String("outcome", outcome), zap.Error(o.Err))
		case storecall.Failed(outcome):
			// Reset and TTL are parts of the one step that has failed.
			if errors.Is(o.Err, sequence.ErrReset) {
				failures.Error("failed to reset sequence", key, zap.String("outcome", outcome), zap.Error(o.Err))
			}
			if ttl := o.Request.Options.TTL; ttl > 0 {
				failures.Warn("failed to set ttl", key, zap.Duration("ttl", ttl), zap.Error(o.Err))
			}
			failures.Error("failed to increment sequence", key, zap.Int("count", o.Request.Count), zap.String("outcome", outcome), zap.Error(o.Err))
		case outcome == "exhausted", outcome == "fenced": // it takes an operator to end that
			failures.Warn("sequence hands out nothing", key, zap.String("outcome", outcome), zap.Error(o.Err))
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
