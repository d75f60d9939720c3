// Package doortest has a daemon without its process for the tests of doors: services on
// a fixed machine ID, a clock that moves when a test says so, and a real listener.
package doortest

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// Patience is when a test gives up on what should happen at once.
const Patience = time.Minute

// Options of Start; the zero value is a daemon that gives regular IDs.
type Options struct {
	daemon.Limits
	Provider string // a URL; "": one machine ID
	Services []string
	Fallback config.Fallback
	Clock    *clock.Fake // nil: the system's
	TCP      bool
}

// Rig is a daemon with its socket and one door.
type Rig struct {
	t       testing.TB
	Server  *daemon.Server
	Metrics *metrics.Metrics
	Network string
	Address string
	stop    context.CancelFunc
	done    chan struct{}
	err     error
}

// Serve serves a door until ctx is done.
type Serve func(ctx context.Context, l net.Listener, s *daemon.Server) error

// Start serves until Stop, or the end of the test.
func Start(t testing.TB, o Options, serve Serve) *Rig {
	t.Helper()
	r := &Rig{t: t, Metrics: metrics.New(metrics.Build{}), done: make(chan struct{})}
	o.fill()
	services := r.services(o)
	s, err := daemon.NewServer(daemon.Config{Limits: o.Limits, DefaultService: "default"}, services, r.Metrics, zap.NewNop())
	must.Succeed(t, err)
	r.Server = s
	if o.Provider != "none:" {
		await.Eventually(r.t, "all IDs are regular", func() bool { return s.Ready(context.Background()) == nil && s.Status().Mode == "regular" })
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	socket := r.unix("socket")
	l := r.listen(o.TCP)
	var parts errgroup.Group
	parts.Go(func() error { return s.Serve(ctx, socket) })
	parts.Go(func() error { return serve(ctx, l, s) })
	go func() {
		defer close(r.done)
		r.err = parts.Wait()
	}()
	t.Cleanup(r.Stop)
	return r
}

func (o *Options) fill() {
	for _, limit := range []*int{&o.MaxConnections, &o.MaxInFlight} {
		if *limit == 0 {
			*limit = 1000
		}
	}
	// All peers of a test are one user, and one process.
	o.MaxConnectionsPerUser = o.MaxConnections
	o.MaxConnections, o.MaxInFlight = 2*o.MaxConnections, 4*o.MaxInFlight
	if o.DrainTimeout == 0 {
		o.DrainTimeout = Patience
	}
	if o.Provider == "" {
		o.Provider = "static:5"
	}
	if o.Fallback == "" {
		o.Fallback = config.FallbackCachedRandom
	}
	o.Services = append(o.Services, "default")
}

func (r *Rig) services(o Options) map[string]*issuer.Service {
	var source clock.Source = clock.System{}
	if o.Clock != nil {
		source = o.Clock
	}
	believed := clock.NewBelieved(source, clock.Config{MaxForward: time.Second, Hold: time.Minute})
	p, err := backend.OpenProvider(o.Provider, backend.ProviderOptions{NowMS: believed.NowMS})
	must.Succeed(r.t, err)
	r.t.Cleanup(func() { _ = p.Close() })
	ephemeral := state.Ephemeral(state.Options{})
	services := map[string]*issuer.Service{}
	for _, name := range o.Services {
		st, err := ephemeral.Service(name)
		must.Succeed(r.t, err)
		svc, err := issuer.NewService(issuer.ServiceOptions{
			Name: name, Provider: p, State: st, Clock: believed, Observer: r.Metrics.Service(name), Log: zap.NewNop(),
			ProviderTimeout: Patience, VerifyInterval: time.Hour,
			Settings: config.Service{
				MaxThroughputPerMS: 1 << snowflake.DefaultBitSeq, Fallback: o.Fallback, SequenceStart: config.SequenceZero,
				StartupWait: time.Hour, MaxBackward: 5 * time.Second, AcquireRetryInterval: time.Second, AcquireRetryMaxInterval: time.Minute,
				BitTS: snowflake.DefaultBitTS, DefaultEpoch: time.UnixMilli(snowflake.DefaultEpochMS),
			},
		})
		must.Succeed(r.t, err)
		services[name] = svc
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = svc.Run(ctx)
		}()
		r.t.Cleanup(func() {
			cancel()
			<-done
			svc.Close(context.Background())
		})
	}
	return services
}

func (r *Rig) listen(tcp bool) net.Listener {
	r.t.Helper()
	if tcp {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must.Succeed(r.t, err)
		r.Network, r.Address = "tcp", l.Addr().String()
		return l
	}
	l := r.unix("door")
	r.Network, r.Address = "unix", l.Path()
	return l
}

func (r *Rig) unix(name string) *unixsock.Listener {
	r.t.Helper()
	l, err := unixsock.Listen(filepath.Join(ring.Dir(r.t), name), unixsock.Options{Mode: 0o600})
	must.Succeed(r.t, err)
	return l
}

// Stop ends Serve, and waits for it.
func (r *Rig) Stop() {
	r.t.Helper()
	r.stop()
	select {
	case <-r.done:
	case <-time.After(Patience):
		r.t.Fatal("Serve does not return")
	}
	if r.err != nil {
		r.t.Errorf("Serve: %v", r.err)
	}
}

// Ending begins what Stop does, and does not wait.
func (r *Rig) Ending() { r.stop() }

// Dial connects.
func (r *Rig) Dial(t testing.TB) net.Conn {
	t.Helper()
	nc, err := net.Dial(r.Network, r.Address)
	must.Succeed(t, err)
	_ = nc.SetDeadline(time.Now().Add(Patience))
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}
