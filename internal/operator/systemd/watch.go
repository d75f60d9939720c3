package systemd

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Watch is what a process tells the service manager while it works.
type Watch struct {
	Watchdog time.Duration // its interval; 0 = none
	Parts    []Part
	Status   func() string // a line; told anew when it changes
	Notify   func(assignments ...string) (bool, error)
	Log      *zap.Logger
}

// Run tells of the status and feeds the watchdog until ctx is done. Everything
// it asks for it asks for by itself: if an answer does not come, it stands
// still, and the watchdog starves.
func (w *Watch) Run(ctx context.Context) {
	tick, parts := maxTick, []Part(nil)
	if w.Watchdog > 0 {
		tick, parts = Tick(w.Watchdog), w.Parts // else nobody need be prodded
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
