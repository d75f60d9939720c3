package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// What keeps a connection honest: a member that hangs is left after at most
// keepAliveTime + keepAliveTimeout, and until then call tries the next.
const (
	keepAliveTime    = 6 * time.Second
	keepAliveTimeout = 2 * time.Second
	// clientRetries: none. Calls are tried again by call, which keeps the reason.
	clientRetries = 1
	// reconnectMax is how long a lost member is left alone at most. gRPC's own
	// two minutes would be as long in fallback for nothing.
	reconnectMax   = 2 * time.Second
	connectTimeout = 2 * time.Second
)

// Provider grants leases from one etcd cluster.
type Provider struct {
	cfg      Config
	where    string // for errors
	services provider.Services
	nowMS    func() int64
	kv       *clientv3.Client
	login    *login

	mu     sync.Mutex
	pools  map[string]*pool // by name
	closed bool             // no view may begin any more

	// lifetime ends with Close, and the views with it.
	lifetime  context.Context
	end       context.CancelFunc
	views     sync.WaitGroup
	closeOnce sync.Once
	closeErr  error

	// at is called at the named steps. Only tests set it.
	at func(step string) error
	// contended counts grants that lost a race; tests and benchmarks read it.
	contended func()
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Verifier = (*Provider)(nil)
	_ provider.Lister   = (*Provider)(nil)
	_ provider.Extender = (*Provider)(nil)
	_ provider.Locator  = (*Provider)(nil)
)

// Open prepares the connections to etcd. It reaches out to nothing yet.
func Open(cfg Config) (*Provider, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	quiet()
	p := &Provider{
		cfg: cfg, where: "etcd://" + strings.Join(cfg.Endpoints, ","), services: cfg.Services, nowMS: cfg.NowMS,
		pools: map[string]*pool{}, at: func(string) error { return nil }, contended: func() {},
	}
	if p.nowMS == nil {
		p.nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	if p.cfg.Host == "" {
		p.cfg.Host, _ = os.Hostname() // without one, all such hosts count as one
	}
	p.login = newLogin(cfg)
	p.lifetime, p.end = context.WithCancel(context.Background())
	if err := p.connect(); err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

func (p *Provider) connect() error {
	if _, err := p.cfg.password(); err != nil { // sooner than at the first login
		return err
	}
	tlsConfig, err := p.cfg.tlsConfig()
	if err != nil {
		return err
	}
	scheme := "http://"
	if tlsConfig != nil {
		scheme = "https://"
	}
	endpoints := make([]string, len(p.cfg.Endpoints))
	for i, e := range p.cfg.Endpoints {
		endpoints[i] = scheme + e
	}
	p.kv, err = clientv3.New(clientv3.Config{
		Context: p.lifetime, Endpoints: endpoints, TLS: tlsConfig, Logger: zap.NewNop(),
		DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout, MaxUnaryRetries: clientRetries,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMax},
				MinConnectTimeout: connectTimeout,
			}),
			grpc.WithChainUnaryInterceptor(failFast),
			grpc.WithPerRPCCredentials(p.login),
		},
	})
	return p.explain(err)
}

// failFast has a call fail when no member can be reached, with the reason. The
// client would wait for one until time is up, and then not know why.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info { return p.cfg.Info() }

// Close implements provider.Provider. Calls under way fail.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.end()
		p.views.Wait()
		if err := p.kv.Close(); err != nil && !errors.Is(err, context.Canceled) {
			p.closeErr = p.explain(err)
		}
	})
	return p.closeErr
}

// Reach says why etcd cannot be reached now, or why nothing can be granted: a
// pool's recorded timeline contradicts the terms (it wraps provider.ErrInvalid).
func (p *Provider) Reach(ctx context.Context) error {
	all := []provider.Terms{p.services.Default}
	for _, t := range p.services.Named {
		all = append(all, t)
	}
	for _, t := range all {
		var resp *clientv3.GetResponse
		err := p.call(ctx, func(ctx context.Context) (err error) {
			resp, err = p.kv.Get(ctx, spaceOf(p.cfg.Prefix, t.Pool).pool())
			return err
		})
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			r, err := decode[poolRecord](kv.Key, kv.Value)
			if err != nil {
				return fmt.Errorf("%s: %w", p.where, err)
			}
			if r.timeline() != t.Timeline {
				return provider.TimelineError(t.Pool, r.timeline(), t.Timeline)
			}
		}
	}
	return nil
}

// begin reports why an operation cannot start.
func (p *Provider) begin(ctx context.Context) error {
	if err := p.usable(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.where, err)
	}
	return nil
}

// pool is what this process knows of a pool. All of it is a hint: a grant is
// made by a transaction that compares what it rests on.
type pool struct {
	name string
	keys space

	mu sync.Mutex
	// inFlight is the slots that this process is trying to get right now, by
	// bit_seq and start, so that its own acquires do not race for them.
	inFlight map[int]map[int64]bool
	view     *view // nil while there is none
	voice    voice
	// lastUse and noViewBefore decide when it is worth having a view.
	lastUse, noViewBefore time.Time
}

func (p *Provider) pool(name string) *pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl, ok := p.pools[name]
	if !ok {
		pl = &pool{name: name, keys: spaceOf(p.cfg.Prefix, name), inFlight: map[int]map[int64]bool{}}
		p.pools[name] = pl
	}
	return pl
}

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	terms := p.services.Of(req.Service)
	now := p.nowMS()
	if err := terms.CheckClock(now); err != nil {
		return nil, err
	}
	if req.RequestID == "" {
		// Tries of one call are told from other requests by it too.
		req.RequestID = provider.NewSecret()
	}
	pl := p.pool(terms.Pool)
	a := &acquisition{
		p: p, pool: pl, terms: terms, req: req, now: now,
		key: pl.keys.request(req.Service, req.RequestID), need: min(terms.LeaseCount(req.ThroughputPerMS), maxLeases),
	}
	return a.run(ctx)
}
