package systemd

import (
	"context"
	"time"
)

const (
	// Every startBeat the start asks for another startExtension.
	startExtension = 30 * time.Second
	startBeat      = 10 * time.Second
	// maxStart is when a start stops asking for more time, and the manager's time
	// limit applies.
	maxStart = 10 * time.Minute
)

// Starting asks for more time during a long start, as on a slow disk or a large
// store. The caller must call stop.
func Starting(ctx context.Context, notify func(...string) (bool, error)) (stop func()) {
	ctx, cancel := context.WithTimeout(ctx, maxStart)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(startBeat)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				_, _ = notify(ExtendTimeout(startExtension)) // the next beat repeats a failed message
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
