package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/runner"
	"github.com/kazahana/kazahana/internal/runner/child"
)

// canExtend refuses a provider that cannot extend leases.
func (j *job) canExtend() error {
	if !j.provider.Info().Coordinated {
		return fmt.Errorf("provider %s: it cannot extend a lease, which run needs: CMD keeps its machine ID for as long as it runs", j.provider.Info().Name)
	}
	return nil
}

// mayExtend asks a lease server for an extension before CMD starts: only this shows whether the
// server extends leases, and whether the token allows it. Other failures may pass.
func (j *job) mayExtend(held *runner.LeaseHolding) error {
	if !slices.Contains(httpconn.Schemes(), j.provider.Info().Name) {
		return nil
	}
	ctx, cancel := context.WithTimeout(j.ctx, j.settings.ProviderTimeout)
	defer cancel()
	_, err := held.Extend(ctx, 0, 0)
	if lost, ok := errors.AsType[*runner.LostError](err); ok && !lost.Gone || errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("run needs a lease server that extends leases: %w", err)
	}
	if p, ok := errors.AsType[*problem.Problem](err); ok && p.Code == problem.Forbidden {
		return fmt.Errorf("%s cannot be extended: %w: run needs a token with the scopes leases and run", held.Name(), err)
	}
	return nil
}

// acquire leases one machine ID. askedAt is the time before the request.
func (j *job) acquire() (l lease.Lease, askedAt time.Duration, err error) {
	a := &runner.Acquisition{
		Provider: j.provider, Request: provider.AcquireRequest{Service: j.service, Meta: j.meta, ThroughputPerMS: 1},
		Clock: j.clock, Timeout: j.settings.ProviderTimeout, Wait: -1, Say: j.say,
	}
	if j.Wait != nil {
		a.Wait = *j.Wait
	}
	ctx, stop := child.Until(j.ctx, j.signals)
	l, askedAt, err = a.Run(ctx)
	granted := err == nil
	if err = j.outcome(stop(), j.signals, err); err != nil && granted {
		j.hold(l).HandBack(j.ctx, j.settings.ProviderTimeout)
	}
	return l, askedAt, err
}

// hold is the holding of a lease that was granted.
func (j *job) hold(l lease.Lease) *runner.LeaseHolding {
	return runner.HoldLease(l, j.provider, j.service, j.clock, j.say)
}

// suits refuses a lease that CMD cannot use.
func (j *job) suits(l lease.Lease) error {
	if j.Min != nil && l.ID < *j.Min || j.Max != nil && l.ID > *j.Max {
		return fmt.Errorf("provider %s granted machine ID %d, which is outside --min and --max, and does not let a client choose", j.provider.Info().URL, l.ID)
	}
	return runner.CheckClock(l, j.now().UnixMilli())
}

// delay is how long CMD waits for a former holder to end. Only a store that can
// forget leases needs a delay.
func (j *job) delay(term time.Duration) time.Duration {
	switch {
	case j.Delay != nil:
		return *j.Delay
	case j.provider.Info().Forgetful:
		return runner.RobberyDelay(j.settings.VerifyInterval, j.settings.ProviderTimeout, term)
	}
	return 0
}
