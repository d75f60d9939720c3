package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kazahana/kazahana/internal/address"
	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/fences"
	"github.com/kazahana/kazahana/internal/operator/limitlistener"
	"github.com/kazahana/kazahana/internal/operator/memlimit"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/operator/statuspage"
	"github.com/kazahana/kazahana/internal/operator/systemd"
	"github.com/kazahana/kazahana/internal/operator/tracing"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// wallSource is the host's clock. Only tests set it.
var wallSource clock.Source = clock.System{}

// features are the abilities that Status reports to clients.
var features = []string{"ids", "external", "uuid", "regular_only"}

type serveCmd struct {
	config.Serve
	Check bool `name:"check" help:"Validate the configuration and exit."`
}

// loadServe reads the settings of the command line again, with the file and the environment.
// The socket is the service manager's, if there is one.
func loadServe(s *system) (*config.Serve, error) {
	var c serveCmd
	if err := c.Load(&c, s.args[1:], s.process()); err != nil {
		return nil, usageError{err}
	}
	if err := adopt(&c.Serve, s.socket); err != nil {
		return nil, usageError{err}
	}
	return &c.Serve, nil
}

// adopt sets the socket path to the service manager's socket, if there is one.
func adopt(settings *config.Serve, socket *unixsock.Listener) error {
	if socket == nil {
		return nil
	}
	if settings.Given("socket") && settings.Socket != socket.Path() {
		return fmt.Errorf("%s is %s, and the socket that the service manager opened is %s: leave out socket, or make it the ListenStream= of the socket unit",
			settings.Cite("socket"), settings.Socket, socket.Path())
	}
	settings.Socket, settings.SocketInTmp = socket.Path(), false
	return nil
}

// Run runs the daemon until SIGINT or SIGTERM.
func (c *serveCmd) Run(s *system) error {
	if c.Check {
		settings, err := loadServe(s)
		if err != nil {
			return err
		}
		return check(s, settings)
	}
	s.queueStderr()
	var err error
	if s.socket, err = systemd.Socket(); err != nil {
		return err
	}
	settings, err := loadServe(s)
	if err != nil {
		return err
	}
	log, err := newLogger(settings.LogLevel, settings.LogFormat, s)
	if err != nil {
		return err
	}
	if _, err := address.RuntimeDir(s.lookup, s.uid); err != nil && !(settings.Given("socket") && settings.Given("live_dir")) {
		log.Warn("the runtime directory is ignored", zap.String("component", "serve"), zap.Error(err))
	}
	return serve(s, settings, log)
}

// check does what serve does up to the first side effect.
func check(s *system, settings *config.Serve) error {
	for _, one := range []func(*config.Serve) error{checkNamed, checkProvider, checkStore} {
		if err := one(settings); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(s.out, "ok: socket %s, state %s, provider %s, %d service(s)\n",
		settings.Socket, cmp.Or(settings.StateDir, "none"), config.Redact(settings.Provider), len(settings.Services()))
	return err
}

// checkNamed checks the files and groups that the settings name.
func checkNamed(settings *config.Serve) error {
	for _, name := range slices.Sorted(maps.Keys(settings.Services())) {
		if _, err := issuer.LoadCodec(settings.Services()[name].ExternalSecretFile, name); err != nil {
			return fmt.Errorf("service %s: external_secret_file: %w", name, err)
		}
	}
	return unixsock.CheckGroup(settings.SocketGroup)
}

// checkProvider checks the URL. It does not open the store: that could create it,
// owned by the user who runs the check instead of the daemon's.
func checkProvider(settings *config.Serve) error {
	p, err := openConfigured(settings)
	if err != nil {
		return usageError{err}
	}
	return p.Close()
}

// openConfigured opens the provider, which must fit the settings.
func openConfigured(settings *config.Serve) (provider.Provider, error) {
	options, err := backend.OptionsFor(settings.Provider, "", settings)
	if err != nil {
		return nil, err
	}
	p, err := backend.OpenProvider(settings.Provider, options)
	if err != nil {
		return nil, fmt.Errorf("provider: %w", err)
	}
	if err := issuer.OneServiceOnly(p.Info(), settings); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// daemonParts are the parts of the daemon, in the order in which serve makes them.
type daemonParts struct {
	settings  *config.Serve
	log       *zap.Logger
	sup       *supervision
	load      func() (*config.Serve, error) // reads the configuration again
	recent    *statuspage.Recent            // the log's warnings and errors, for the status page
	history   statuspage.History
	metrics   *metrics.Metrics
	refusals  *refusals.Counter
	issuer    *issuer.Issuer
	tracing   *tracing.Tracing // nil: none
	server    *daemon.Server
	activated *unixsock.Listener // the service manager's socket; nil: none
	socket    *unixsock.Listener
	beside    map[string]net.Listener // the other listeners, by their keys
	placement *daemon.Placement       // nil: off
	fences    *fences.Watcher
	sockets   unixsock.Watch
	memory    int64 // that the process may use, in bytes
}

// serve assembles the daemon, runs it until it is to stop, and takes it down in the
// reverse order of the requests' flow.
func serve(s *system, settings *config.Serve, log *daemonLog) error {
	d := &daemonParts{
		settings: settings, log: log.Logger, recent: log.recent, activated: s.socket, load: func() (*config.Serve, error) { return loadServe(s) },
		metrics: metrics.New(metrics.Build{Version: version, Commit: buildCommit(), GoVersion: runtime.Version()}),
	}
	sup, stop := supervise(s, d.serveLog())
	defer stop()
	d.sup = sup
	d.metrics.WatchLog(log.dropped)
	d.metrics.Configuration(sup.outdated)
	d.metrics.Certificates(connurl.CertificateFiles(settings.Provider, settings.Store), connurl.Validity)
	d.refusals = refusals.New(d.log, d.metrics.Refused)
	d.tracing = tracing.Start(tracing.Options{Service: "kazahanad", Version: version, Log: log.Logger})
	defer d.tracing.Close() // after everything that is traced
	defer d.close()
	ctx := s.ctx
	err := d.assemble(ctx)
	if ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, context.Canceled)) {
		d.serveLog().Info("stopped before the start was complete")
		return nil
	}
	if err != nil {
		return err
	}
	d.announce()
	if err := d.run(ctx); err != nil {
		return err
	}
	d.serveLog().Info("stopping: leases are given back")
	return nil
}

func (d *daemonParts) assemble(ctx context.Context) (err error) {
	d.issuer, err = issuer.Open(ctx, issuer.Options{
		Settings: d.settings, Version: version, Log: d.log, Tracing: d.tracing,
		Observer:    func(service string) keeper.Observer { return d.metrics.Service(service) },
		StateFailed: d.metrics.StateErrors.Inc, ClockEvent: d.countClockEvent, StoreCalled: d.metrics.StoreCalled,
		Wall: wallSource,
	})
	if file, ok := errors.AsType[*state.FileError](err); ok && file.Lasting() {
		err = exitStatus{code: exitState, error: err}
	}
	if err != nil {
		return err
	}
	d.fences = fences.New(d.issuer.Provider, d.issuer.KeyedStores, d.issuer.Clock.NowMS, d.serveLog())
	d.metrics.Fences(d.fences.All)
	if err := d.openPlacement(); err != nil {
		return err
	}
	d.memory = memlimit.Set(d.settings.MemoryLimit)
	if d.server, err = daemon.NewServer(d.serverConfig(), d.issuer.Services, d.metrics, d.log); err != nil {
		return err
	}
	if err := d.listenBeside(); err != nil {
		return err
	}
	// The service manager's socket comes last: a start that fails leaves it open, and
	// answers the clients that wait.
	if d.socket = d.activated; d.socket != nil {
		return nil
	}
	d.socket, err = unixsock.Listen(d.settings.Socket, unixsock.Options{
		Mode: d.settings.SocketMode, Group: d.settings.SocketGroup, Private: d.settings.SocketInTmp,
	})
	return err
}

// countClockEvent counts jumps of the clock ahead.
func (d *daemonParts) countClockEvent(e clock.Event) {
	switch e.Kind {
	case clock.ForwardDisbelieved:
		d.metrics.ClockForward.Inc()
	case clock.ForwardAccepted:
		d.metrics.ClockAccepted.Inc()
	}
}

// limits are those of the server. Open files are set aside for the admin listener, and so for
// the socket.
func (d *daemonParts) limits() daemon.Limits {
	s := d.settings
	return daemon.Limits{
		AllowUIDs: s.AllowUIDs, AllowGIDs: s.AllowGIDs,
		MaxConnections: s.MaxConnections, MaxConnectionsPerUser: s.MaxConnectionsPerUser,
		MaxInFlight: s.MaxInFlight, MaxWaiting: s.MaxWaiting, DrainTimeout: s.DrainTimeout, MemoryLimit: d.memory,
		Files: limitlistener.Files() - limitlistener.Beside(admin.MaxConnections),
	}
}

func (d *daemonParts) serverConfig() daemon.Config {
	info := d.issuer.Provider.Info()
	locks, sequences := d.keepingConfig()
	return daemon.Config{
		Locks: locks, Sequences: sequences, Placement: d.placement, Trace: d.tracing.Method(), Refusals: d.refusals,
		Limits: d.limits(), DefaultService: d.settings.DefaultService, UUIDVersion: d.settings.UUIDVersion,
		State: d.issuer.State.Health, Lost: d.sockets.Lost, Fences: d.fences.Now,
		Identity: daemon.Identity{
			Version: version, Commit: buildCommit(), GoVersion: runtime.Version(), Features: d.knownFeatures(),
			Socket: d.settings.Socket, Provider: info.URL,
			Scope: string(info.Scope), Promise: d.issuer.Promise(),
		},
	}
}

// serveLog is the log for events of the daemon as a whole.
func (d *daemonParts) serveLog() *zap.Logger { return d.log.With(zap.String("component", "serve")) }

// announce logs what an operator wants to know at the start.
func (d *daemonParts) announce() {
	info, log := d.issuer.Provider.Info(), d.serveLog()
	log.Info("kazahanad is ready",
		zap.String("socket", d.settings.Socket), zap.String("provider", info.URL), zap.String("scope", string(info.Scope)),
		zap.String("state_dir", cmp.Or(d.settings.StateDir, "none")), zap.String("live_dir", cmp.Or(d.issuer.State.Health().Live, "none")), zap.String("version", version),
		zap.Int64("memory_limit", d.memory))
	d.issuer.AnnounceScope(log)
	d.announceBeside()
}

// run works until ctx is done or a part fails, then drains. The keepers and
// the state outlive the server and the doors: requests that are being drained need both.
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
	part(behind, d.issuer.Run)
	d.sup.status = func() string { return d.server.Status().Line() }
	part(ctx, func(ctx context.Context) error {
		d.sup.manage(ctx, d.server.Serving(), d.watched(), d.server.DrainTimeout())
		return nil
	})
	part(ctx, func(ctx context.Context) error {
		reloadOn(ctx, d.sup, d.settings, d.load, d.change)
		return nil
	})
	part(behind, d.fences.Run)
	part(ctx, func(ctx context.Context) error {
		return d.sockets.Run(ctx, d.serveLog(), append(slices.Collect(maps.Values(d.beside)), d.socket)...)
	})
	if l := d.beside[keyAdmin]; l != nil {
		part(behind, func(ctx context.Context) error {
			return admin.Serve(ctx, l, d.adminHandler(ctx), d.refusals)
		})
		part(behind, d.watchForPage)
	}
	var doors sync.WaitGroup
	d.openDoors(ctx, func(ctx context.Context, serve func(context.Context) error) {
		doors.Add(1)
		part(ctx, func(ctx context.Context) error {
			defer doors.Done()
			return serve(ctx)
		})
	})
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
	doors.Wait()
	<-said // soon: ctx is done by now
	stopBehind()
	return errors.Join(err, parts.Wait())
}

// change puts into force the settings that a running daemon can change.
func (d *daemonParts) change(s *config.Serve) {
	d.server.Allow(s.AllowUIDs, s.AllowGIDs)
	d.sup.setLevel(s.LogLevel)
}

// close takes down the assembled parts, the services first: they give their leases back.
func (d *daemonParts) close() {
	if d.issuer != nil {
		d.issuer.Close()
	}
	if d.socket != nil {
		issuer.SayUnclosed(d.serveLog(), d.socket.Close())
	}
	for _, l := range d.beside {
		issuer.SayUnclosed(d.serveLog(), l.Close())
	}
}
