package systemd

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Watch reports the state of a working process to the service manager.
type Watch struct {
	Watchdog time.Duration // its interval; 0 = none
	Parts    []Part
	Status   func() string // one line; sent again when it changes
	Notify   func(assignments ...string) (bool, error)
	Log      *zap.Logger
}

// Run reports the status and feeds the watchdog until ctx is done. It calls Status
// and Turns in its own goroutine: if one of them hangs, the watchdog is not fed.
func (w *Watch) Run(ctx context.Context) {
	tick, parts := maxTick, []Part(nil)
	if w.Watchdog > 0 {
		tick, parts = Tick(w.Watchdog), w.Parts // without a watchdog no part is prodded
	}
	progress, fed := NewProgress(w.Watchdog, parts, time.Now()), time.Time{}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	told, starved, deaf := "", "", false
	for {
		var say []string
		if line := w.Status(); line != told {
			told, say = line, append(say, Status(line))
		}
		now := time.Now()
		if stuck := strings.Join(progress.Check(now), ", "); w.Watchdog > 0 && stuck == "" {
			if now.Sub(fed) >= w.Watchdog/feedsPerInterval {
				fed, say = now, append(say, alive)
			}
			starved = ""
		} else if w.Watchdog > 0 && stuck != starved {
			starved = stuck
			w.Log.Error("the watchdog is not fed: something has stopped working", zap.String("stuck", stuck), zap.Duration("watchdog", w.Watchdog))
		}
		if len(say) > 0 {
			if _, err := w.Notify(say...); err != nil && !deaf {
				w.Log.Warn("cannot notify", zap.Error(err))
				deaf = true
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
