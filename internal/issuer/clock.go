package issuer

import (
	"context"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/clock"
)

// clockEventBuffer is how many clock events may wait to be logged. Further ones are
// counted and not logged.
const clockEventBuffer = 64

// clockEvent passes the event on and leaves the logging to logClock, because a request
// waits for it to return.
func (i *Issuer) clockEvent(e clock.Event) {
	if i.opts.ClockEvent != nil {
		i.opts.ClockEvent(e)
	}
	select {
	case i.events <- e:
	default:
	}
}

// logClock logs the clock's events until ctx is done.
func (i *Issuer) logClock(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-i.events:
			i.logClockEvent(e)
		}
	}
}

func (i *Issuer) logClockEvent(e clock.Event) {
	log := i.opts.Log.With(zap.String("component", "clock"), zap.Duration("difference", e.Diff))
	switch e.Kind {
	case clock.ForwardDisbelieved:
		log.Warn("the wall clock jumped ahead; it is not believed until it comes back, a provider agrees, or forward_hold has passed")
	case clock.ForwardAccepted:
		log.Error("the wall clock has stayed ahead for forward_hold; it is believed from now on")
	case clock.ForwardConfirmed:
		log.Info("a provider's clock agrees with the wall clock, which is believed again")
	case clock.ForwardReturned, clock.BackwardReturned:
		log.Info("the wall clock came back")
	case clock.BackwardSeen:
		log.Warn("the wall clock jumped back")
	case clock.BackwardAccepted:
		log.Warn("the wall clock has stayed back for forward_hold; that is its course now")
	}
}
