package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/guard"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/operator/statuspage"
	"github.com/kazahana/kazahana/internal/operator/systemd"
	"github.com/kazahana/kazahana/internal/operator/tracing"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/backend"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// wallSource is the host's clock. Only tests set it.
var wallSource clock.Source = clock.System{}

// hostName replaces the host's name. Only tests set it.
var hostName string

// closeTimeout limits the time for giving back leases at the end.
const closeTimeout = 5 * time.Second

// firstLook is how long the start waits to learn whether the provider's store
// contradicts the configuration.
const firstLook = 250 * time.Millisecond

// features are the abilities that Status reports to clients.
var features = []string{"ids", "external", "uuid", "regular_only"}

// promises say how far each scope's promise of uniqueness reaches.
var promises = map[provider.Scope]string{
	provider.ScopeShared:     "regular IDs are unique among all hosts that use this provider",
	provider.ScopeHost:       "regular IDs are unique on this host only; other hosts with a file of their own make the same ones, unless each has its own range of machine IDs (?ids=LOW-HIGH)",
	provider.ScopeUnverified: "no check prevents another daemon from using the same machine ID: uniqueness is the operator's promise",
	provider.ScopeNone:       "there is no provider: every ID is a fallback ID, and only chance keeps those of two daemons apart",
}

type serveCmd struct {
	config.Flags
	Check bool `help:"Validate the configuration and exit."`
}

// Run runs the daemon until SIGINT or SIGTERM.
func (c *serveCmd) Run(s *system) error {
	load := func() (*config.Serve, error) {
		return c.Load(config.Process{Environ: s.env, UID: s.uid, Now: s.now()})
	}
	if c.Check {
		settings, err := load()
		if err != nil {
			return usageError{err}
		}
		return check(s, settings)
	}
	s.queueStderr()
	var err error
	if s.socket, err = systemd.Socket(); err != nil {
		return err
	}
	settings, err := load()
	if err != nil {
		return usageError{err}
	}
	log, err := newLogger(settings.LogLevel, settings.LogFormat, s)
	if err != nil {
		return err
	}
	sup, stop, err := supervise(s, settings, load)
	if err != nil {
		return err
	}
	defer stop()
	return serve(s.ctx, settings, log, sup)
}

// check does what serve does up to the first side effect.
func check(s *system, settings *config.Serve) error {
	if err := checkNamed(settings); err != nil {
		return err
	}
	if err := checkProvider(settings); err != nil {
		return err
	}
	if err := checkStore(settings); err != nil {
		return err
	}
	if err := checkDoors(settings); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "ok: socket %s, state %s, provider %s, %d service(s)\n",
		settings.Socket, orNone(settings.StateDir), config.Redact(settings.Provider), len(settings.Services()))
	return err
}

// checkNamed checks the files and groups that the settings name.
func checkNamed(settings *config.Serve) error {
	for _, name := range slices.Sorted(maps.Keys(settings.Services())) {
		if _, err := daemon.LoadCodec(settings.Services()[name].ExternalSecretFile, name); err != nil {
			return fmt.Errorf("service %s: external_secret_file: %w", name, err)
		}
	}
	return unixsock.CheckGroup(settings.SocketGroup)
}

// checkProvider checks the URL. It does not open the store: that could create it,
// owned by the user who runs the check instead of the daemon's.
func checkProvider(settings *config.Serve) error {
	p, err := openConfigured(settings.Provider, settings)
	if err != nil {
		return usageError{err}
	}
	return p.Close()
}

// openConfigured opens the provider, which must fit the settings; nil for any.
func openConfigured(url string, settings *config.Serve) (provider.Provider, error) {
	p, err := backend.Open(url, backend.Options{})
	if err != nil {
		return nil, fmt.Errorf("provider: %w", err)
	}
	if settings == nil {
		return p, nil
	}
	if err := oneServiceOnly(p.Info(), settings); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// daemonParts are the parts of the daemon, in the order in which serve makes them.
type daemonParts struct {
	settings  *config.Serve
	log       *zap.Logger
	sup       *supervision
	recent    *statuspage.Recent // the log's warnings and errors, for the status page
	history   statuspage.History
	metrics   *metrics.Metrics
	quotas    *quota.Book
	state     *state.State
	provider  provider.Provider
	fencer    provider.Provider // the same, untraced: the tracing wrapper hides some methods
	keeping   *keeping          // nil: no locks and sequences
	tracing   *tracing.Tracing  // nil: none
	clock     *clock.Believed
	events    chan clock.Event // of the clock, for the log
	services  map[string]*daemon.Service
	server    *daemon.Server
	socket    *unixsock.Listener
	admin     net.Listener // nil: none, as with the next two
	memcached net.Listener
	http      net.Listener
	placement *daemon.Placement // nil: off
	fences    *fences
	memory    int64 // that the process may use, in bytes
	ran       bool  // the services ran, so their leases must be given back
}

// serve assembles the daemon, runs it until ctx is done, and takes it down in the
// reverse order of the requests' flow.
func serve(ctx context.Context, settings *config.Serve, log *daemonLog, sup *supervision) (err error) {
	d := &daemonParts{
		settings: settings, log: log.Logger, sup: sup, recent: log.recent, events: make(chan clock.Event, clockEventBuffer),
		metrics: metrics.New(metrics.Build{Version: version, Commit: buildCommit(), GoVersion: runtime.Version()}),
	}
	d.metrics.WatchLog(log.dropped)
	certificates := certificateFiles(settings.Provider, settings.Store)
	d.metrics.Certificates(func() map[string]metrics.Certificate { return firstToEnd(certificates) })
	d.quotas = quota.New(d.log, d.metrics.Refused)
	d.tracing = tracing.Start(tracing.Options{Service: "kazahanad", Version: version, Log: log.Logger})
	defer d.tracing.Close() // after everything that is traced
	defer func() { err = errors.Join(err, d.close()) }()
	started := systemd.Starting(ctx, sup.notify)
	err = d.assemble(ctx)
	started()
	if err != nil {
		return err
	}
	d.announce()
	d.ran = true
	if err := d.run(ctx); err != nil {
		return err
	}
	d.serveLog().Info("stopping: leases are given back")
	return nil
}

func (d *daemonParts) assemble(ctx context.Context) (err error) {
	// The state directory's lock comes first: a second daemon must not read the
	// leases.
	if err := d.openState(ctx); err != nil {
		return err
	}
	stored, err := d.openServiceStates()
	if err != nil {
		return err
	}
	if err := d.openProvider(ctx); err != nil {
		return err
	}
	if err := d.openStore(); err != nil {
		return err
	}
	d.fences = newFences(d.fencer, d.keeping.file(), d.clock.NowMS, d.serveLog())
	d.metrics.Fences(d.fences.all)
	if err := d.openPlacement(); err != nil {
		return err
	}
	if err := d.openServices(stored); err != nil {
		return err
	}
	d.memory = limitMemory(d.settings.MemoryLimit)
	if d.server, err = daemon.NewServer(d.serverConfig(), d.services, d.metrics, d.log); err != nil {
		return err
	}
	if d.socket = d.sup.socket; d.socket != nil {
		warnOfIdleKeys(d.settings, d.serveLog())
	} else if d.socket, err = unixsock.Listen(d.settings.Socket, unixsock.Options{
		Mode: d.settings.SocketMode, Group: d.settings.SocketGroup, Private: d.settings.SocketInTmp,
	}); err != nil {
		return err
	}
	return d.listenBeside()
}

func (d *daemonParts) openState(ctx context.Context) (err error) {
	opts := state.Options{Log: d.log.With(zap.String("component", "state")), OnError: d.metrics.StateErrors.Inc}
	if d.settings.StateDir == "" {
		d.state = state.Ephemeral(opts)
		return nil
	}
	opts.Live = liveDir(d.settings)
	d.state, err = state.Open(ctx, d.settings.StateDir, opts)
	var file *state.FileError
	if errors.As(err, &file) && file.Lasting() {
		err = exitStatus{code: exitState, error: err}
	}
	return err
}

// liveDir is the live directory: the configured one, else the first usable default;
// "" for none.
func liveDir(settings interface{ LiveDirs() (string, []string) }) string {
	dir, places := settings.LiveDirs()
	if dir == "" {
		dir = state.ChooseLive(places)
	}
	return dir
}

// openProvider fails only if the provider can never work. If it cannot be reached
// now, the keepers retry, and IDs are fallback IDs meanwhile.
func (d *daemonParts) openProvider(ctx context.Context) (err error) {
	// Providers without a clock of their own use the believed one: a wall clock that
	// jumped must not date their grants.
	d.provider, err = backend.Open(d.settings.Provider, backend.Options{
		NowMS: d.clock.NowMS, LiveDir: liveDir(d.settings), Host: hostName, Log: d.log.With(zap.String("component", "provider")),
	})
	if err != nil {
		return usageError{fmt.Errorf("provider: %w", err)}
	}
	d.fencer, d.provider = d.provider, d.tracing.Provider(d.provider)
	if err := oneServiceOnly(d.provider.Info(), d.settings); err != nil {
		return usageError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	if err := d.provider.Ready(ctx); errors.Is(err, provider.ErrInvalid) {
		return usageError{err} // the store contradicts the configuration
	}
	return nil
}

// oneServiceOnly refuses several services on a provider that would give them all
// the same machine ID.
func oneServiceOnly(info provider.Info, settings *config.Serve) error {
	if n := len(settings.Services()); !info.Coordinated && n > 1 {
		return fmt.Errorf("provider %s: gives every service the same machine ID, and %d services are configured", info.Name, n)
	}
	return nil
}

// openServiceStates opens each service's part of the state, and the clock, which
// starts no earlier than their floors.
func (d *daemonParts) openServiceStates() (map[string]*state.Service, error) {
	stored := map[string]*state.Service{}
	floor := int64(0)
	for name, settings := range d.settings.Services() {
		st, err := d.state.Service(name)
		if err != nil {
			return nil, err
		}
		stored[name] = st
		floor = max(floor, st.Mark(), settings.DefaultEpoch.UnixMilli(), st.Load().Timeline.EpochMS)
	}
	d.clock = clock.NewBelieved(wallSource, clock.Config{
		MaxForward: d.settings.MaxForward, Hold: d.settings.ForwardHold, FloorMS: floor, OnEvent: d.clockEvent,
	})
	return stored, nil
}

func (d *daemonParts) openServices(stored map[string]*state.Service) error {
	d.services = map[string]*daemon.Service{}
	for name, settings := range d.settings.Services() {
		svc, err := daemon.NewService(daemon.ServiceOptions{
			Name: name, Settings: settings, Meta: leaseMeta(name, d.settings.Meta),
			ProviderTimeout: d.settings.ProviderTimeout, VerifyInterval: d.settings.VerifyInterval,
			Provider: d.provider, Origin: d.origin(), State: stored[name], Clock: d.clock, Metrics: d.metrics, Log: d.log,
		})
		if err != nil {
			return err
		}
		d.services[name] = svc
	}
	return nil
}

// origin identifies the provider: the configured URL and the provider's own form of
// it, which for ip: names the machine ID.
func (d *daemonParts) origin() string {
	return config.Redact(d.settings.Provider) + " " + d.provider.Info().URL
}

// leaseMeta describes the holder of a lease to the provider.
func leaseMeta(service string, more map[string]string) map[string]string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	meta := map[string]string{"host": host, "pid": strconv.Itoa(os.Getpid()), "version": version, "service": service}
	for k, v := range more {
		meta[k] = v
	}
	return meta
}

// limits are those of the server. A reload does not change memory_limit. Open files are set
// aside for the admin listener, and so for the socket.
func (d *daemonParts) limits(s *config.Serve) daemon.Limits {
	return daemon.Limits{
		AllowUIDs: s.AllowUIDs, AllowGIDs: s.AllowGIDs,
		MaxConnections: s.MaxConnections, MaxInFlight: s.MaxInFlight, DrainTimeout: s.DrainTimeout, MemoryLimit: d.memory,
		Files:           guard.Files() - guard.Beside(admin.MaxConnections),
		UserConnections: s.QuotaConnections, UserInFlight: s.QuotaWaiting, UserHolds: s.QuotaHolds, UserMemory: s.QuotaBytes,
	}
}

func (d *daemonParts) serverConfig() daemon.Config {
	info := d.provider.Info()
	locks, sequences := d.keepingConfig()
	return daemon.Config{
		Locks: locks, Sequences: sequences, Placement: d.placement, Trace: d.tracing.Method(), Quotas: d.quotas,
		Limits: d.limits(d.settings), DefaultService: d.settings.DefaultService,
		EventLoop: d.settings.EventLoop, State: d.state.Health, Fences: d.fences.now,
		Identity: daemon.Identity{
			Version: version, Commit: buildCommit(), GoVersion: runtime.Version(), Features: d.knownFeatures(),
			Socket: d.settings.Socket, Provider: info.URL,
			Scope: string(info.Scope), Promise: promises[info.Scope],
		},
	}
}

// serveLog is the log for events of the daemon as a whole.
func (d *daemonParts) serveLog() *zap.Logger { return d.log.With(zap.String("component", "serve")) }

// announce logs what an operator wants to know at the start.
func (d *daemonParts) announce() {
	info, log := d.provider.Info(), d.serveLog()
	log.Info("kazahanad is ready",
		zap.String("socket", d.settings.Socket), zap.String("provider", info.URL), zap.String("scope", string(info.Scope)),
		zap.String("state_dir", orNone(d.settings.StateDir)), zap.String("live_dir", orNone(d.state.Health().Live)), zap.String("version", version),
		zap.Int64("memory_limit", d.memory))
	level := zap.InfoLevel
	if info.Scope != provider.ScopeShared {
		level = zap.WarnLevel
	}
	log.Log(level, "scope of uniqueness", zap.String("scope", string(info.Scope)), zap.String("promise", promises[info.Scope]), zap.String("provider", info.Name))
	d.announceBeside()
}

// run works until ctx is done or a part fails, then drains. The keepers and
// the state outlive the server: requests that are being drained need both.
func (d *daemonParts) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	behind, stopBehind := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBehind()

	var parts errgroup.Group
	part := func(ctx context.Context, run func(context.Context) error) {
		parts.Go(func() error {
			err := run(ctx)
			if err != nil {
				stop(err)
			}
			return err
		})
	}
	part(behind, d.state.Run)
	part(ctx, d.manage)
	part(ctx, d.reloadOn)
	part(behind, d.logClock)
	part(behind, d.fences.watch)
	part(behind, func(ctx context.Context) error { settle(ctx, d.server.Held); return nil })
	for _, svc := range d.services {
		part(behind, svc.Run)
	}
	if d.admin != nil {
		part(behind, func(ctx context.Context) error {
			return admin.Serve(ctx, d.admin, d.adminHandler(ctx), d.quotas)
		})
		part(behind, d.watchForPage)
	}
	d.openDoors(ctx, part)
	said := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(said)
		d.serveLog().Info("stopping: requests under way are answered first")
	})
	serving := ctx
	if d.placement != nil {
		// Actors can be passivated only while their processes are still served.
		var over context.CancelFunc
		serving, over = context.WithCancel(behind)
		defer over()
		part(ctx, func(ctx context.Context) error {
			defer over()
			return d.placement.Run(ctx)
		})
	}
	err := d.server.Serve(serving, d.socket)
	stop(err)
	<-said // soon: ctx is done by now
	stopBehind()
	return errors.Join(err, parts.Wait())
}

// close takes down what was assembled, the services first: they give their
// leases back.
func (d *daemonParts) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, svc := range d.services {
		if d.ran {
			svc.Close(ctx)
		} else {
			svc.Abandon()
		}
	}
	errs := []error{d.keeping.close(ctx)}
	if d.socket != nil {
		if err := d.socket.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, l := range []net.Listener{d.admin, d.memcached, d.http} {
		if l == nil {
			continue
		}
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if d.provider != nil {
		errs = append(errs, d.provider.Close())
	}
	if d.state != nil {
		errs = append(errs, d.state.Close())
	}
	return errors.Join(errs...)
}
