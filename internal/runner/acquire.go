package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// How an acquire is repeated.
const (
	// After so many calls without an answer, unavailablePause apart, an acquisition fails. If it
	// is already waiting for a free machine ID, it waits for the provider too.
	unavailableAttempts = 3
	unavailablePause    = time.Second
	// A pool without a free machine ID is asked again after firstPause, then
	// after twice as long each time, up to mostPause.
	firstPause = 500 * time.Millisecond
	mostPause  = 10 * time.Second
	// sayEvery is how often a wait is reported.
	sayEvery = time.Minute
)

// Acquisition asks a provider for one lease.
type Acquisition struct {
	Provider provider.Provider
	Request  provider.AcquireRequest // without a RequestID
	Clock    clock.Source
	Timeout  time.Duration // of one call
	Wait     time.Duration // how long to ask again while no machine ID is free; negative = for ever
	Say      func(format string, args ...any)

	began    time.Duration // Boot
	askedAt  time.Duration // Boot, before the first call under the present RequestID
	calls    int           // under the present RequestID
	refusals int           // answers so far that no machine ID is free
	failures int           // calls in a row without an answer
	said     time.Duration // Boot at the latest report of the wait
}

// Run returns a lease, and the reading of Clock.Boot from before its request. A call
// under way is not cut off when ctx is done, since its grant would be lost: Run may
// return a lease although ctx is done.
func (a *Acquisition) Run(ctx context.Context) (l lease.Lease, askedAt time.Duration, err error) {
	a.began = a.Clock.Boot()
	for {
		l, err := a.ask(ctx)
		switch {
		case err == nil && a.stale(l):
			_, _ = HoldLease(l, a.Provider, a.Request.Service, a.Clock, a.Say).Release(ctx, a.Timeout, l.Created) // otherwise it runs out by itself
			a.Request.RequestID, a.failures = "", 0
			continue
		case err == nil:
			return l, a.askedAt, nil
		}
		pause, again := a.judge(err)
		if !again || ctx.Err() != nil {
			return lease.Lease{}, 0, a.explain(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return lease.Lease{}, 0, a.explain(err)
		}
	}
}

// stale reports whether a lease may be too old to begin with: its end is counted from
// the first of several calls, which may have been granted it.
func (a *Acquisition) stale(l lease.Lease) bool {
	term := time.Duration(l.Term()) * time.Millisecond
	return a.calls > 1 && a.Clock.Boot()-a.askedAt > term/extendPart
}

func (a *Acquisition) ask(ctx context.Context) (lease.Lease, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.Timeout)
	defer cancel()
	if a.Request.RequestID == "" {
		a.Request.RequestID, a.askedAt, a.calls = provider.NewSecret(), a.Clock.Boot(), 0
	}
	a.calls++
	leases, err := a.Provider.Acquire(ctx, a.Request)
	if err != nil {
		return lease.Lease{}, err
	}
	if err := leases[0].Validate(); err != nil {
		return lease.Lease{}, fmt.Errorf("%w: %w", provider.ErrInvalid, err)
	}
	return leases[0], nil
}

// judge decides whether to ask again, and after how long.
func (a *Acquisition) judge(err error) (pause time.Duration, again bool) {
	waited := a.Clock.Boot() - a.began
	inTime := a.Wait < 0 || waited < a.Wait
	var busy *provider.BusyError
	isBusy := errors.As(err, &busy)
	switch {
	case isBusy, errors.As(err, new(*provider.FullError)), errors.As(err, new(*provider.FencedError)):
		if isBusy { // a lease may have been granted: the same request gets it
			pause = busy.Wait(0, rand.Float64())
		} else {
			// An earlier call that was given up may still be carried out, at an unknown time.
			a.Request.RequestID = ""
			pause = min(firstPause<<min(a.refusals, 10), mostPause)
			pause -= time.Duration(rand.Int64N(int64(pause / 4))) // clients that wait should not all ask at once
		}
		a.refusals++
		a.failures = 0
		again = inTime
	case errors.Is(err, provider.ErrInvalid), errors.Is(err, provider.ErrNone), errors.Is(err, errors.ErrUnsupported):
		return 0, false
	default:
		a.failures++
		pause = unavailablePause
		again = a.failures < unavailableAttempts || a.refusals > 0 && inTime
		if errors.Is(err, provider.ErrConflict) { // the grant was lost on the way, and has ended
			a.Request.RequestID = ""
		}
	}
	if a.Wait >= 0 && a.refusals > 0 {
		pause = min(pause, a.Wait-waited)
	}
	if again {
		a.tell(err, waited)
	}
	return pause, again
}

// tell reports a wait at once, and then every sayEvery. Before a wait has begun, it
// reports every call without an answer.
func (a *Acquisition) tell(err error, waited time.Duration) {
	if a.refusals == 0 {
		a.Say("trying again: %v", err)
		return
	}
	boot := a.Clock.Boot()
	if a.said != 0 && boot-a.said < sayEvery {
		return
	}
	a.said = boot
	a.Say("waiting for a machine ID, for %v so far: %v", waited.Round(time.Second), err)
}

func (a *Acquisition) explain(err error) error {
	if a.refusals > 0 && a.Wait > 0 {
		return fmt.Errorf("no machine ID within %v: %w", a.Wait, err)
	}
	return fmt.Errorf("no machine ID: %w", err)
}
