package proof

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// This file is what a stream's keeper has around it. The keeper is the product's; the world has its
// turns come one at a time, in place of Keeper.Run, which waits for a timer and for growth.

// newKeeper returns the stream's keeper, which has published the leases that it found.
func (s *stream) newKeeper() *keeper.Keeper {
	return keeper.New(s.keeperConfig(), keeper.Deps{
		Provider: remote{s.d.w.provider, s}, Generator: supplied{s}, Store: s, Clock: believed{s},
		Observer: unobserved{}, Log: zap.NewNop(), Rand: s.d.w.rnd,
	})
}

// turn lets the keeper take its due steps, or stop, to the end.
func (s *stream) turn(do func(context.Context)) {
	if s.busy {
		return
	}
	s.busy = true
	do(context.Background())
	s.busy = false
	s.d.w.trail.ends(s)
	s.flush()
}

func (s *stream) doDue(ctx context.Context) {
	if !s.stopped {
		s.keeper.Step(ctx)
	}
}

func (s *stream) shutDown(ctx context.Context) {
	s.stopped = true
	s.keeper.Shutdown(ctx)
}

// remote is the provider at the end of the wire.
type remote struct {
	provider.Provider
	s *stream
}

// Acquire implements provider.Provider.
func (r remote) Acquire(_ context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	return r.s.acquire(req)
}

// Verify implements provider.Provider.
func (r remote) Verify(_ context.Context, _ string, claims []provider.Claim) ([]int, error) {
	if r.s.d.w.plain {
		return nil, errors.ErrUnsupported
	}
	lost, err := r.s.verify(claims)
	for _, at := range lost {
		r.s.d.w.trail.lost(r.s, claims[at])
	}
	return lost, err
}

// Release implements provider.Provider.
func (r remote) Release(_ context.Context, req provider.ReleaseRequest) error {
	err := r.s.release(req)
	r.s.d.w.trail.hears(r.s, req, err)
	return err
}

// supplied is the generator, to which the stream hands on what the keeper publishes.
type supplied struct{ s *stream }

func (g supplied) Update(held []lease.Lease, cached *lease.Lease, cause error) {
	g.s.publish(keeper.Publish{Held: held, Cached: cached, Cause: cause})
}

func (g supplied) Rebase(tl snowflake.Timeline) bool { return g.s.gen.Rebase(tl) }

func (g supplied) Growth() <-chan struct{} { return g.s.gen.Growth() }

func (g supplied) LastMS() int64 {
	if g.s.d.w.without(releaseCoversLastEmbedded) {
		return 0
	}
	return g.s.gen.LastMS()
}

// believed is the keeper's clock. Here a clock is believed at any time.
type believed struct{ s *stream }

func (c believed) NowMS() int64           { return c.s.d.clock() }
func (c believed) Elapsed() time.Duration { return time.Since(c.s.d.w.began) }
func (c believed) Confirm(int64)          {}

// unobserved has no metrics.
type unobserved struct{}

func (unobserved) Acquired(string)              {}
func (unobserved) Called(string, time.Duration) {}
func (unobserved) Lost(string)                  {}
func (unobserved) Mismatch()                    {}
func (unobserved) StateFailed()                 {}
func (unobserved) Skew(time.Duration)           {}
