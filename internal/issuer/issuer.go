package issuer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/tracing"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/state"
)

const (
	// CloseTimeout limits the time for giving back leases at the end.
	CloseTimeout = 5 * time.Second
	// FirstLook is how long the start waits to learn whether the provider's store
	// contradicts the configuration.
	FirstLook = 250 * time.Millisecond
)

// promises say how far each scope's promise of uniqueness reaches.
var promises = map[provider.Scope]string{
	provider.ScopeShared:     "regular IDs are unique among all hosts that use this provider",
	provider.ScopeHost:       "regular IDs are unique on this host only; other hosts with a file of their own make the same ones, unless each has its own range of machine IDs (?ids=LOW-HIGH)",
	provider.ScopeUnverified: "no check prevents another daemon from using the same machine ID: uniqueness is the operator's promise",
	provider.ScopeNone:       "there is no provider: every ID is a fallback ID, and only chance keeps those of two daemons apart",
}

// SettingsError says that the settings are wrong, so that trying again is of no use.
type SettingsError struct{ error }

func (e *SettingsError) Unwrap() error { return e.error }

// Options of an Issuer.
type Options struct {
	Settings *config.Serve
	Version  string // of what makes the IDs, for the meta of leases
	Log      *zap.Logger
	Tracing  *tracing.Tracing // nil: none
	// Observer returns what observes the keeper of a service.
	Observer func(service string) keeper.Observer
	// StateFailed is called for each failed write of the local state, and ClockEvent for
	// each event of the clock, by a request that waits for it; both may be nil.
	StateFailed func()
	ClockEvent  func(clock.Event)
	StoreCalled func(op string, took time.Duration) // after each call of the store; may be nil

	Wall clock.Source // nil: the host's clock
}

// Issuer makes the IDs of a process.
type Issuer struct {
	State       *state.State
	Clock       *clock.Believed
	Provider    provider.Provider // untraced: the tracing wrapper hides some methods
	Services    map[string]*Service
	KeyedStores *KeyedStores // nil: no locks and sequences

	opts   Options
	traced provider.Provider
	events chan clock.Event // of the clock, for the log
	ran    bool             // the services ran, so their leases must be given back
}

// Open assembles an Issuer. Run supplies it, and Close takes it down. If the provider
// cannot be reached now, the keepers retry, and IDs are fallback IDs meanwhile.
//
// Errors: *SettingsError, *state.LockedError if another process has the state
// directory, *state.FileError about a file of it.
func Open(ctx context.Context, o Options) (_ *Issuer, err error) {
	i := &Issuer{opts: o, events: make(chan clock.Event, clockEventBuffer), Services: map[string]*Service{}}
	defer func() {
		if err != nil {
			i.Close()
		}
	}()
	// The state directory's lock comes first: a second process must not read the
	// leases.
	if err := i.openState(ctx); err != nil {
		return nil, err
	}
	stored, err := i.openServiceStates()
	if err != nil {
		return nil, err
	}
	if err := i.openProvider(ctx); err != nil {
		return nil, err
	}
	if err := i.openKeyedStores(); err != nil {
		return nil, err
	}
	return i, i.openServices(stored)
}

func (i *Issuer) openState(ctx context.Context) (err error) {
	s, opts := i.opts.Settings, state.Options{Log: i.opts.Log.With(zap.String("component", "state")), OnError: i.opts.StateFailed}
	if s.StateDir == "" {
		i.State = state.Ephemeral(opts)
		return nil
	}
	opts.Live = LiveDir(s)
	i.State, err = state.Open(ctx, s.StateDir, opts)
	return err
}

// LiveDir is the live directory: the configured one, else the first usable default;
// "" for none.
func LiveDir(settings interface{ LiveDirs() (string, []string) }) string {
	dir, places := settings.LiveDirs()
	if dir == "" {
		dir = state.ChooseLive(places)
	}
	return dir
}

// openServiceStates opens each service's part of the state, and the clock, which
// starts no earlier than their floors.
func (i *Issuer) openServiceStates() (map[string]*state.Service, error) {
	stored := map[string]*state.Service{}
	floor := int64(0)
	for name, settings := range i.opts.Settings.Services() {
		st, err := i.State.Service(name)
		if err != nil {
			return nil, err
		}
		stored[name] = st
		floor = max(floor, st.Mark(), settings.DefaultEpoch.UnixMilli(), st.Load().Timeline.EpochMS)
	}
	wall := i.opts.Wall
	if wall == nil {
		wall = clock.System{}
	}
	i.Clock = clock.NewBelieved(wall, clock.Config{
		MaxForward: i.opts.Settings.MaxForward, Hold: i.opts.Settings.ForwardHold, FloorMS: floor, OnEvent: i.clockEvent,
	})
	return stored, nil
}

// openProvider fails only if the provider can never work.
func (i *Issuer) openProvider(ctx context.Context) (err error) {
	// Providers without a clock of their own use the believed one: a wall clock that
	// jumped must not date their grants.
	options, err := backend.OptionsFor(i.opts.Settings.Provider, "", i.opts.Settings)
	if err != nil {
		return &SettingsError{err}
	}
	options.NowMS, options.LiveDir = i.Clock.NowMS, LiveDir(i.opts.Settings)
	i.Provider, err = backend.OpenProvider(i.opts.Settings.Provider, options)
	if err != nil {
		return &SettingsError{fmt.Errorf("provider: %w", err)}
	}
	i.traced = i.opts.Tracing.Provider(i.Provider)
	if err := OneServiceOnly(i.Provider.Info(), i.opts.Settings); err != nil {
		return &SettingsError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, FirstLook)
	defer cancel()
	if err := i.traced.Ready(ctx); errors.Is(err, provider.ErrInvalid) {
		return &SettingsError{err} // the store contradicts the configuration
	}
	return nil
}

// OneServiceOnly refuses several services on a provider that would give them all
// the same machine ID.
func OneServiceOnly(info provider.Info, settings *config.Serve) error {
	if n := len(settings.Services()); !info.Coordinated && info.Scope != provider.ScopeNone && n > 1 {
		return fmt.Errorf("provider %s: gives every service the same machine ID, and %d services are configured", info.Name, n)
	}
	return nil
}

func (i *Issuer) openKeyedStores() (err error) {
	s := i.opts.Settings
	i.KeyedStores, err = OpenKeyedStores(KeyedStoresOptions{
		Named: s.Store, Provider: s.Provider, StateDir: s.StateDir, LiveDir: LiveDir(s), Sequences: s.Sequences,
		Limits: bounds.Limits{Keys: int64(s.MaxKeys), Bytes: s.MaxDisk}, Timeout: s.ProviderTimeout, Clock: i.Clock,
		Watching: Watching{Tracing: i.opts.Tracing, Log: i.opts.Log, Called: i.opts.StoreCalled},
	})
	return err
}

func (i *Issuer) openServices(stored map[string]*state.Service) error {
	s := i.opts.Settings
	for name, settings := range s.Services() {
		svc, err := NewService(ServiceOptions{
			Name: name, Settings: settings, Meta: LeaseMeta(name, i.opts.Version, s.Meta),
			ProviderTimeout: s.ProviderTimeout, VerifyInterval: s.VerifyInterval,
			Provider: i.traced, Origin: i.origin(name), State: stored[name], Clock: i.Clock, Observer: i.opts.Observer(name), Log: i.opts.Log,
		})
		if err != nil {
			return err
		}
		i.Services[name] = svc
	}
	return nil
}

// origin identifies what grants to a service: the configured URL, the provider's own form of it,
// which for ip: names the machine ID, and the service's own terms, which may name another pool.
func (i *Issuer) origin(service string) string {
	origin := config.Redact(i.opts.Settings.Provider) + " " + i.Provider.Info().URL
	if own := i.opts.Settings.Terms()[service]; own != nil {
		origin += " " + own.Encode()
	}
	return origin
}

// LeaseMeta describes the holder of a lease to the provider.
func LeaseMeta(service, version string, more map[string]string) map[string]string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	meta := map[string]string{"host": host, "pid": strconv.Itoa(os.Getpid()), "version": version, "service": service}
	maps.Copy(meta, more)
	return meta
}

// Promise says how far the promise of uniqueness reaches.
func (i *Issuer) Promise() string { return promises[i.Provider.Info().Scope] }

// AnnounceScope logs how far the promise of uniqueness reaches.
func (i *Issuer) AnnounceScope(log *zap.Logger) {
	info, level := i.Provider.Info(), zap.InfoLevel
	if info.Scope != provider.ScopeShared {
		level = zap.WarnLevel
	}
	log.Log(level, "scope of uniqueness", zap.String("scope", string(info.Scope)), zap.String("promise", i.Promise()), zap.String("provider", info.Name))
}

// Run keeps the state on the disk and supplies the services, until ctx is done. It
// returns nil.
func (i *Issuer) Run(ctx context.Context) error {
	i.ran = true
	var parts errgroup.Group
	parts.Go(func() error { return i.State.Run(ctx) })
	parts.Go(func() error { return i.logClock(ctx) })
	for _, svc := range i.Services {
		parts.Go(func() error { return svc.Run(ctx) })
	}
	return parts.Wait()
}

// Close stops the services, which give their leases back, and closes what Open
// opened. Run has returned, or was never called: then the leases stay for the next
// start. What fails or takes too long is logged, and is no error: locks end with their
// terms, stores write before they answer, and the next start finds the marks.
func (i *Issuer) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), CloseTimeout)
	defer cancel()
	for _, svc := range i.Services {
		if i.ran {
			svc.Close(ctx)
		} else {
			svc.Abandon()
		}
	}
	log := i.opts.Log.With(zap.String("component", "serve"))
	SayUnclosed(log, i.KeyedStores.Close(ctx))
	if i.Provider != nil {
		SayUnclosed(log, i.Provider.Close())
	}
	if i.State != nil {
		SayUnclosed(log, i.State.Close())
	}
}

// SayUnclosed warns of what a stop could not close.
func SayUnclosed(log *zap.Logger, err error) {
	if err != nil && !errors.Is(err, net.ErrClosed) {
		log.Warn("the stop could not close everything; no ID and no answer that was given is lost", zap.Error(err))
	}
}
