package issuer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/clock"
)

// A clock that jumps back is one warning, with the difference.
func TestBackwardClockIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		i := &Issuer{opts: Options{Log: zap.New(core)}, events: make(chan clock.Event, clockEventBuffer)}
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = i.logClock(ctx) }()
		i.clockEvent(clock.Event{Kind: clock.BackwardSeen, Diff: -time.Second})
		synctest.Wait()
		stop()
		said := logs.All()
		// Seed 000-5.6-3.
		if len(said) != 1 || said[0].Level != zap.WarnLevel || said[0].Message != "the wall clock jumped back" || said[0].ContextMap()["difference"] != -time.Second {
			t.Errorf("%v", said)
		}
	})
}
