package issuer

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

// ServiceOptions are what a service is assembled from.
type ServiceOptions struct {
	Name            string
	Settings        config.Service
	Meta            map[string]string
	ProviderTimeout time.Duration
	VerifyInterval  time.Duration
	Provider        provider.Provider
	// Origin names the provider and the part of it that is granted from, without
	// secrets. Leases that an earlier run got from another one are not adopted.
	Origin   string
	State    *state.Service
	Clock    *clock.Believed
	Observer keeper.Observer
	Log      *zap.Logger
}

// Service is one stream of IDs and what supplies it.
type Service struct {
	name     string
	settings config.Service
	gen      *generator.Generator
	keeper   *keeper.Keeper // nil: standalone
	state    *state.Service
	clock    *clock.Believed
	log      *zap.Logger
	external *snowflake.Codec
	timeline snowflake.Timeline // at the start; the keeper's afterwards
	supply   keeper.Config
}

// NewService assembles a service and publishes what its state remembers. Run
// supplies it, Close takes it down.
func NewService(o ServiceOptions) (*Service, error) {
	s := &Service{name: o.Name, state: o.State, clock: o.Clock}
	if o.Log != nil {
		s.log = o.Log.With(zap.String("component", "daemon"), zap.String("service", o.Name))
	}
	s.settings = o.Settings
	codec, err := LoadCodec(o.Settings.ExternalSecretFile, o.Name)
	if err != nil {
		return nil, fmt.Errorf("external_secret_file: %w", err)
	}
	s.external = &codec
	if s.timeline, err = settleTimeline(o.Name, o.Settings, o.State); err != nil {
		return nil, err
	}
	if err := dropForeign(o); err != nil {
		return nil, err
	}
	standalone := o.Provider.Info().Scope == provider.ScopeNone
	s.gen = generator.New(generator.Options{
		Config:      streamConfig(o.Settings, standalone),
		Timeline:    s.timeline,
		Floor:       o.State.Mark(),
		StartupWait: o.Settings.StartupWait,
		Clock:       o.Clock,
		Mark:        o.State,
		Rand:        newRand(),
	})
	if standalone {
		return s, nil
	}
	s.supply = keeper.Config{Service: o.Name, Meta: o.Meta, CallTimeout: o.ProviderTimeout, VerifyEvery: o.VerifyInterval}
	s.keeper = keeper.New(s.supplyConfig(o.Settings), keeper.Deps{
		Provider: o.Provider, Generator: s.gen, Store: o.State, Clock: o.Clock,
		Observer: o.Observer, Log: o.Log.With(zap.String("component", "keeper"), zap.String("service", o.Name)),
		Rand: newRand(),
	})
	return s, nil
}

func streamConfig(settings config.Service, standalone bool) generator.Config {
	return generator.Config{
		MaxThroughput: int64(settings.MaxThroughputPerMS),
		Fallback:      generator.Fallback(settings.Fallback),
		MaxBackwardMS: backwardMS(settings.MaxBackward),
		Spread:        settings.SequenceStart == config.SequenceSpread,
		Standalone:    standalone,
	}
}

func (s *Service) supplyConfig(settings config.Service) keeper.Config {
	cfg := s.supply
	cfg.MaxThroughput = int64(settings.MaxThroughputPerMS)
	cfg.RetryInterval, cfg.RetryMax = settings.AcquireRetryInterval, settings.AcquireRetryMaxInterval
	return cfg
}

// Run supplies the service with leases, and tells the log which IDs it can issue, until ctx is
// done.
func (s *Service) Run(ctx context.Context) error {
	var parts errgroup.Group
	parts.Go(func() error { return s.watch(ctx, s.log) })
	if s.keeper != nil {
		parts.Go(func() error { return s.keeper.Run(ctx) })
	}
	return parts.Wait()
}

// Abandon stops the stream and keeps the leases, for the next start: this one
// came to nothing.
func (s *Service) Abandon() { s.gen.Stop() }

// Close stops the stream, then gives the leases back. Run has returned.
func (s *Service) Close(ctx context.Context) {
	s.gen.Stop()
	if s.keeper != nil {
		s.keeper.Shutdown(ctx)
	}
}

// backwardMS rounds up: a limit below a millisecond is not no limit.
func backwardMS(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// newRand is seeded by the system: random fallback IDs and spread starts of
// two hosts must not run alike, and request IDs must not be guessed.
func newRand() *rand.Rand {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails; crypto/rand ends the process instead
	return rand.New(rand.NewChaCha8(seed))
}

// LoadCodec reads a service's secret for external IDs: the file's bytes without one
// trailing newline. Without a path the codec has no secret.
func LoadCodec(path, service string) (snowflake.Codec, error) {
	if path == "" {
		return snowflake.Codec{}, nil
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		return snowflake.Codec{}, err
	}
	if n := len(secret); n > 0 && secret[n-1] == '\n' {
		secret = secret[:n-1]
	}
	codec, err := snowflake.NewCodec(secret, service)
	if err != nil {
		return snowflake.Codec{}, fmt.Errorf("%s: %w", path, err)
	}
	return codec, nil
}

// dropForeign forgets leases that another provider granted, or this one from another pool
// or range: its grants now know nothing of them, and could overlap them.
func dropForeign(o ServiceOptions) error {
	saved := o.State.Load()
	if saved.Origin == o.Origin {
		return nil
	}
	if len(saved.Held) > 0 || saved.Cached != nil {
		o.Log.Warn("leases of another provider are not adopted; they run out by themselves",
			zap.String("component", "state"), zap.String("service", o.Name),
			zap.String("granted_by", saved.Origin), zap.String("provider", o.Origin))
	}
	saved.Held, saved.Cached, saved.Origin = nil, nil, o.Origin
	return o.State.Save(saved)
}

// settleTimeline decides which epoch and bit_ts the service starts with: a lease's, or
// the configuration's, where they have never been used or a change of them keeps the IDs
// increasing.
func settleTimeline(name string, settings config.Service, st *state.Service) (snowflake.Timeline, error) {
	saved := st.Load()
	wanted := snowflake.Timeline{EpochMS: settings.DefaultEpoch.UnixMilli(), BitTS: settings.BitTS}
	if saved.Source == state.SourceLease || saved.Timeline == wanted {
		return saved.Timeline, nil
	}
	if saved.Source == state.SourceConfig {
		if c := (state.ServiceReport{Mark: st.Mark(), Saved: saved}).Crossing(wanted); c.HasOld && !c.Ascends() {
			why := fmt.Sprintf("the next ID would be smaller (%d, after %d)", c.SmallestNew, c.LargestOld)
			if !c.HasNew {
				why = fmt.Sprintf("time runs out at %s, and IDs of a later time were made", snowflake.FormatMS(wanted.EndMS()))
			}
			return wanted, fmt.Errorf("service %s: the epoch (default_epoch, or epoch in services) and bit_ts were %s and %d, and IDs were made with them; "+
				"with %s and %d %s: set them back, or give the service another name",
				name, snowflake.FormatMS(saved.Timeline.EpochMS), saved.Timeline.BitTS,
				snowflake.FormatMS(wanted.EpochMS), wanted.BitTS, why)
		}
	}
	if err := st.Save(state.Saved{Timeline: wanted, Source: state.SourceConfig, Largest: saved.Largest}); err != nil {
		return wanted, err
	}
	return wanted, nil
}

// Timeline is the one in use now.
func (s *Service) Timeline() snowflake.Timeline {
	if s.keeper != nil {
		if tl := s.keeper.Status().Timeline; tl != (snowflake.Timeline{}) {
			return tl
		}
	}
	return s.timeline
}

// Layout is how the service's IDs are split now, as far as one answer is right: the first lease's
// layout, or the default while there was none.
func (s *Service) Layout() snowflake.Layout {
	tl := s.Timeline()
	if s.keeper != nil {
		status := s.keeper.Status()
		for _, l := range status.Held {
			return l.Layout()
		}
		if status.Cached != nil {
			return status.Cached.Layout()
		}
	}
	return layoutFor(tl.BitTS)
}

// layoutFor is the layout that a bit_ts goes with where nothing else is known:
// the default bit_seq, or less where that leaves no room for a machine ID.
func layoutFor(bitTS int) snowflake.Layout {
	if js := snowflake.JSLayout(); bitTS == js.BitTS {
		return js
	}
	low := snowflake.ValueBits - bitTS
	seq := min(snowflake.DefaultBitSeq, low-1)
	return snowflake.Layout{BitTS: bitTS, BitID: low - seq, BitSeq: seq}
}

// Generator makes the IDs.
func (s *Service) Generator() *generator.Generator { return s.gen }

// Clock is the believed time.
func (s *Service) Clock() *clock.Believed { return s.clock }

// Codec writes and reads external IDs.
func (s *Service) Codec() *snowflake.Codec { return s.external }

// Settings are those in force.
func (s *Service) Settings() config.Service { return s.settings }

// Step lets the keeper take its due steps: for tests that run nothing in the background.
func (s *Service) Step(ctx context.Context) {
	if s.keeper != nil {
		s.keeper.Step(ctx)
	}
}

// Ready reports why the service cannot issue an ID now, or nil.
func (s *Service) Ready(ctx context.Context) error {
	if mode, cause := s.gen.Mode(); mode == generator.ModeUnavailable {
		if cause == nil {
			cause = errors.New("no lease, and no fallback allowed")
		}
		return fmt.Errorf("service %s cannot issue IDs: %w", s.name, cause)
	}
	return ctx.Err()
}

// KeeperTurns counts the turns of what supplies the service with leases, nil
// where there is nothing to supply it from.
func (s *Service) KeeperTurns() func() uint64 {
	if s.keeper == nil {
		return nil
	}
	return s.keeper.Turns
}
