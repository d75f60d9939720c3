package systemd

import (
	"context"
	"time"
)

const (
	// startExtension is asked for at a time, startBeat as often.
	startExtension = 30 * time.Second
	startBeat      = 10 * time.Second
	// maxStart is after how long a start that has not come to its end is left to
	// the manager's patience.
	maxStart = 10 * time.Minute
)

// Starting asks for more time while a start takes long, as one on a slow disk or
// a large store may. stop ends that, and has to be called.
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
				_, _ = notify(ExtendTimeout(startExtension)) // who cannot be told now is told of Ready, or is not
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
