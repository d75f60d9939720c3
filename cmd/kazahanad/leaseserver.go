package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/leaseserver"
	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/fences"
	"github.com/kazahana/kazahana/internal/operator/limitlistener"
	"github.com/kazahana/kazahana/internal/operator/memlimit"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/operator/tracing"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/unixsock"
)

type leaseServerCmd struct {
	config.LeaseServer
	Check bool `name:"check" help:"Validate the configuration and exit."`
}

// loadLeaseServer is loadServe for the lease server.
func loadLeaseServer(s *system) (*config.LeaseServer, error) {
	var c leaseServerCmd
	if err := c.Load(&c, s.args[1:], s.process()); err != nil {
		return nil, usageError{err}
	}
	return &c.LeaseServer, nil
}

// Run runs the lease server until SIGINT or SIGTERM.
func (c *leaseServerCmd) Run(s *system) error {
	if !c.Check {
		s.queueStderr()
	}
	settings, err := loadLeaseServer(s)
	if err != nil {
		return err
	}
	log, err := newLogger(settings.LogLevel, settings.LogFormat, s)
	if err != nil {
		return err
	}
	parts := &leaseServerParts{settings: settings, base: log, log: log.With(zap.String("component", "leaseserver"))}
	if c.Check {
		return parts.check(s)
	}
	sup, stop := supervise(s, parts.log)
	defer stop()
	parts.sup, parts.load = sup, func() (*config.LeaseServer, error) { return loadLeaseServer(s) }
	parts.metrics = metrics.NewLeaseServer(metrics.Build{Version: version, Commit: buildCommit(), GoVersion: runtime.Version()})
	parts.refusals = refusals.New(log.Logger, parts.metrics.Refused)
	parts.tracing = tracing.Start(tracing.Options{Service: "kazahana-lease-server", Version: version, Log: log.Logger})
	defer parts.tracing.Close()
	return parts.run(s.ctx)
}

// leaseServerParts are the parts of the lease server.
type leaseServerParts struct {
	settings    *config.LeaseServer
	sup         *supervision
	load        func() (*config.LeaseServer, error) // reads the configuration again
	base        *daemonLog
	log         *zap.Logger      // base, with the component
	tracing     *tracing.Tracing // nil: none
	metrics     *metrics.LeaseServer
	refusals    *refusals.Counter
	services    provider.Services
	provider    provider.Provider
	fences      *fences.Watcher
	keyedStores *issuer.KeyedStores                        // nil: no locks and sequences
	tokens      *leaseserver.Reloaded[*leaseserver.Tokens] // nil: none are needed
	tls         *leaseserver.Reloaded[*tls.Config]         // nil: plain HTTP
}

// prepare does everything up to the first side effect. close ends what it has opened, also where it fails.
func (l *leaseServerParts) prepare() (err error) {
	if err := l.readServices(); err != nil {
		return usageError{err}
	}
	if l.provider, err = backend.OpenProvider(l.settings.Provider, backend.ProviderOptions{Services: l.services.Named, LiveDir: issuer.LiveDir(l.settings)}); err != nil {
		return usageError{fmt.Errorf("provider: %w", err)}
	}
	untraced := l.provider
	l.provider = l.tracing.Provider(l.provider)
	if path := l.settings.TokensFile; path != "" {
		load := func() (*leaseserver.Tokens, error) { return leaseserver.ReadTokens(path) }
		if l.tokens, err = leaseserver.NewReloaded("tokens_file", []string{path}, load, l.log); err != nil {
			return err
		}
	}
	if l.settings.TLSCert != "" {
		files := leaseserver.TLSFiles{Cert: l.settings.TLSCert, Key: l.settings.TLSKey, ClientCA: l.settings.ClientCA}
		if l.tls, err = leaseserver.NewTLS(files, l.log); err != nil {
			return err
		}
	}
	set := l.settings
	watch := issuer.Watching{Tracing: l.tracing, Log: l.base.Logger}
	if l.keyedStores, err = issuer.OpenKeyedStores(keyedStoresOptions(&set.Leases, &set.Records, issuer.LiveDir(set), watch)); err != nil {
		return err
	}
	l.fences = fences.New(untraced, l.keyedStores, func() int64 { return time.Now().UnixMilli() }, l.base.With(zap.String("component", "serve")))
	return nil
}

// close ends what prepare opened.
func (l *leaseServerParts) close() {
	if l.provider == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), issuer.CloseTimeout)
	defer cancel()
	issuer.SayUnclosed(l.log, l.keyedStores.Close(ctx))
	issuer.SayUnclosed(l.log, l.provider.Close())
}

// readServices builds terms from the provider URL and the services map.
func (l *leaseServerParts) readServices() error {
	options, err := backend.OptionsFor(l.settings.Provider, "", l.settings)
	if err != nil {
		return err
	}
	if l.services, err = options.TermsIn(l.settings.Provider); err != nil {
		return fmt.Errorf("provider: %w", err)
	}
	// Requests that name no service mean "default".
	if terms, ok := l.services.Named["default"]; ok {
		l.services.Named[""] = terms
	}
	return l.services.Validate()
}

func (l *leaseServerParts) check(s *system) error {
	defer l.close()
	if err := l.prepare(); err != nil {
		return err
	}
	if err := unixsock.CheckGroup(l.settings.SocketGroup); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "ok: listen %s, provider %s, TLS %s, tokens %s, %d service(s)\n", l.settings.Listen,
		config.Redact(l.settings.Provider), cmp.Or(l.settings.TLSCert, "none"), cmp.Or(l.settings.TokensFile, "none"), len(l.settings.Services()))
	return err
}

func (l *leaseServerParts) run(ctx context.Context) error {
	defer l.close()
	if err := l.prepare(); err != nil {
		return err
	}
	if l.tls != nil {
		l.sup.files = append(l.sup.files, l.tls)
	}
	if l.tokens != nil {
		l.sup.files = append(l.sup.files, l.tokens)
	}
	first, cancel := context.WithTimeout(ctx, issuer.FirstLook)
	defer cancel()
	if err := l.provider.Ready(first); errors.Is(err, provider.ErrInvalid) {
		return usageError{err} // the store contradicts the configuration
	}
	listener, err := listen(l.settings.Listen, unixsock.Options{Mode: l.settings.SocketMode, Group: l.settings.SocketGroup, Flag: "--listen"})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { issuer.SayUnclosed(l.log, listener.Close()) }()

	listening := leaseserver.Listening{
		MemoryLimit: memlimit.Set(l.settings.MemoryLimit), MaxConnections: min(l.settings.MaxConnections, limitlistener.Files()), PerAddress: l.settings.MaxConnectionsPerAddress,
		DrainDelay: l.settings.DrainDelay, DrainTimeout: l.settings.DrainTimeout,
	}
	if l.tls != nil {
		listening.TLS = leaseserver.ServerTLS(l.tls)
	}
	// After DNS rebinding a browser takes this server for the page's own site, and
	// its requests have no mark. So without credentials only known hosts pass.
	if l.tokens == nil && l.settings.ClientCA == "" && !l.settings.Insecure {
		listening.Wrap = func(h http.Handler) http.Handler { return admin.OwnNames(listener.Addr(), l.settings.Listen, h) }
	}
	options := l.options()
	options.Metrics.Fences(l.fences.All)
	server := leaseserver.New(options)
	l.announce(listener.Addr())
	l.sup.status = func() string { return fmt.Sprintf("serving on %s, from %s", listener.Addr(), l.provider.Info().URL) }
	managed, stopManaging := context.WithCancel(ctx)
	var managing sync.WaitGroup
	ready := make(chan struct{})
	close(ready)
	// No part is watched: every connection has a goroutine and deadlines of its own.
	managing.Go(func() { l.sup.manage(managed, ready, nil, l.settings.DrainDelay+l.settings.DrainTimeout) })
	managing.Go(func() {
		reloadOn(managed, l.sup, l.settings, l.load, func(s *config.LeaseServer) { l.sup.setLevel(s.LogLevel) })
	})
	managing.Go(func() { _ = l.fences.Run(managed) }) // never fails
	managing.Go(func() { _ = new(unixsock.Watch).Run(managed, l.log, listener) })
	defer managing.Wait()
	defer stopManaging()
	return server.Serve(ctx, listener, listening)
}

func (l *leaseServerParts) options() leaseserver.Options {
	o := leaseserver.Options{
		Provider: l.provider, Services: l.services, Version: version,
		ClientCertificates: l.settings.ClientCA != "", ProviderTimeout: l.settings.ProviderTimeout,
		MaxInFlight: l.settings.MaxInFlight, RateLimit: float64(l.settings.RateLimit), RateBurst: l.settings.RateBurst,
		Ready:    l.provider.Ready,
		Refusals: l.refusals,
		Metrics:  l.metrics,
		Fences:   l.fences.Now,
		Log:      l.log,
		Recent:   l.base.recent,
		Trace:    l.tracing.Route,
	}
	o.Metrics.WatchLog(l.base.dropped)
	o.Metrics.Configuration(l.sup.outdated)
	certificates := connurl.CertificateFiles(l.settings.Provider, l.settings.Store)
	if file := l.settings.TLSCert; file != "" && !slices.Contains(certificates, file) {
		certificates = append(certificates, file)
	}
	o.Metrics.Certificates(certificates, connurl.Validity)
	if l.tokens != nil {
		o.Tokens = l.tokens.Get
	}
	if k := l.keyedStores; k != nil {
		o.Locks = &leaseserver.Locks{Store: k.Store.Locks, Host: k.Locks}
		o.Placements = &leaseserver.Placements{Records: k.Store.Placements}
		o.Sequences = &leaseserver.Sequences{Store: k.Direct, Options: func(_, key string) (sequence.Options, bool) { return k.Options(key) }}
	}
	return o
}

// announce logs what an operator wants to know at the start.
func (l *leaseServerParts) announce(address net.Addr) {
	info := l.provider.Info()
	l.log.Info("the lease server is ready", zap.String("listen", address.String()), zap.String("provider", info.URL),
		zap.Bool("tls", l.tls != nil), zap.Bool("client_certificates", l.settings.ClientCA != ""),
		zap.Bool("tokens", l.tokens != nil), zap.Int("services", len(l.settings.Services())), zap.String("version", version))
	if info.Scope == provider.ScopeUnverified {
		l.log.Warn("the leases are kept in this process only, and forgotten with it: after a restart machine IDs are granted twice")
	}
	if info.Scope == provider.ScopeHost {
		l.log.Info("one lease server can use this store: several need redis, etcd or postgres behind them")
	}
	if l.settings.Insecure {
		l.log.Warn("insecure: any host that reaches this address can take machine IDs, or read secrets on the way")
	}
	if file, err := os.Stat(l.settings.TokensFile); err == nil && file.Mode().Perm()&0o004 != 0 {
		l.log.Warn("every user can read tokens_file: chmod o-r", zap.String("file", l.settings.TokensFile))
	}
}
