package issuer

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// watchInterval is how often a service looks at its mode. Each look wakes an idle daemon. A
// shorter trouble is in the counters, not in the log.
const watchInterval = time.Second

// modeWatch tells the log when a service begins to issue other IDs, or none, and when its
// layout's time runs out.
type modeWatch struct {
	log      *zap.Logger
	why      string             // the class of the last message; "" = all is well
	timeline snowflake.Timeline // that was said last
}

// watch looks until ctx is done.
func (s *Service) watch(ctx context.Context, log *zap.Logger) error {
	w := &modeWatch{log: log}
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		s.look(w)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look tells the log what has changed since the last look.
func (s *Service) look(w *modeWatch) {
	mode, cause := s.gen.Mode()
	var retry time.Duration
	if s.keeper != nil {
		k := s.keeper.Status()
		if retry = k.RetryIn; cause == nil {
			cause = k.Cause
		}
	}
	w.mode(mode, cause, retry)
	w.layout(s.Timeline(), mode)
}

// mode logs the mode from now on, if it has changed.
func (w *modeWatch) mode(mode generator.Mode, cause error, retry time.Duration) {
	if errors.Is(cause, generator.ErrStopped) {
		return
	}
	why := string(mode)
	var backward *generator.ClockBackwardError
	overflow := errors.Is(cause, generator.ErrOverflow)
	switch {
	case mode == generator.ModeRegular, mode == generator.ModeStarting && w.why == "":
		why = ""
	case mode != generator.ModeUnavailable:
	case errors.As(cause, &backward) && backward.Earlier:
		why = "behind the mark"
	case errors.As(cause, &backward):
		why = "clock backward"
	case overflow:
		why = "overflow"
	}
	if why == w.why {
		return
	}
	before := w.why
	w.why = why
	fields := []zap.Field{zap.String("mode", string(mode)), zap.Error(cause)}
	switch {
	case why == "":
		w.log.Info("IDs are regular again", zap.String("before", before))
	case backward != nil && mode == generator.ModeUnavailable:
		w.log.Error("no IDs until the clock has caught up", append(fields,
			zap.Duration("remaining", time.Duration(backward.BackwardMS)*time.Millisecond))...)
	case overflow:
		w.log.Error("no IDs any more: the layout's time is used up", fields...)
	case mode == generator.ModeUnavailable:
		w.log.Error("no IDs until a lease is granted", append(fields, zap.Duration("retry_in", retry))...)
	case mode == generator.ModeFallbackUncertain:
		w.log.Error("cached fallback IDs are no longer certain: the reservation of the last lease has ended, and another host may make the same ones", fields...)
	case mode == generator.ModeStarting:
		w.log.Info("the first lease is being waited for", fields...)
	default:
		w.log.Warn("IDs are fallback IDs until a lease is granted", append(fields, zap.Duration("retry_in", retry))...)
	}
}

// layout says which layout is in use once that is known.
func (w *modeWatch) layout(tl snowflake.Timeline, mode generator.Mode) {
	if tl != w.timeline && mode != generator.ModeStarting {
		w.timeline = tl
		w.log.Info("layout in use", zap.String("epoch", snowflake.FormatMS(tl.EpochMS)), zap.Int("bit_ts", tl.BitTS),
			zap.String("time_runs_out", snowflake.FormatMS(tl.EndMS())))
	}
}
