package etcdconn

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// A connection to a member that hangs is given up after at most keepAliveTime +
// keepAliveTimeout; until then call tries the next member.
const (
	keepAliveTime    = 6 * time.Second
	keepAliveTimeout = 2 * time.Second
	// clientRetries: no retries. Client.Call repeats calls itself and keeps the reason.
	clientRetries = 1
	// reconnectMax is the longest pause before a lost member is tried again. gRPC's own
	// two minutes would prolong fallback.
	reconnectMax           = 2 * time.Second
	reconnectJitterPercent = 20
	connectTimeout         = 2 * time.Second
)

// reconnecting is the backoff for a lost member. gRPC adds jitter to the largest delay
// too, so that delay is reconnectMax less the jitter.
var reconnecting = backoff.Config{
	BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: reconnectJitterPercent / 100.0,
	MaxDelay: reconnectMax * 100 / (100 + reconnectJitterPercent),
}

// maxTxnOps is etcd's default limit of comparisons, and of operations, in one
// transaction.
const maxTxnOps = 128

// Client is connected to one etcd cluster. Its methods may be called by many
// goroutines.
type Client struct {
	// KV is the client library's, to be used inside of Call, and for watches.
	KV *clientv3.Client

	cfg       Config
	login     *login
	lifetime  context.Context // ends with Close
	end       context.CancelFunc
	closeOnce sync.Once
	closeErr  error
}

// Open prepares the connections to etcd. It does not connect yet.
func Open(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	Quiet()
	c := &Client{cfg: cfg, login: newLogin(cfg)}
	c.lifetime, c.end = context.WithCancel(context.Background())
	if err := c.connect(); err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

func (c *Client) connect() (err error) {
	if _, err := c.cfg.password(); err != nil { // fail early, not at the first login
		return err
	}
	tlsConfig, err := c.cfg.tlsConfig()
	if err != nil {
		return err
	}
	scheme := "http://"
	if tlsConfig != nil {
		scheme = "https://"
	}
	endpoints := make([]string, len(c.cfg.Endpoints))
	for i, e := range c.cfg.Endpoints {
		endpoints[i] = scheme + e
	}
	c.KV, err = clientv3.New(clientv3.Config{
		Context: c.lifetime, Endpoints: endpoints, TLS: tlsConfig, Logger: zap.NewNop(),
		DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout, MaxUnaryRetries: clientRetries,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           reconnecting,
				MinConnectTimeout: connectTimeout,
			}),
			grpc.WithChainUnaryInterceptor(failFast),
			grpc.WithPerRPCCredentials(c.login),
		},
	})
	return c.Explain(err)
}

// failFast makes a call fail, with the reason, when no member can be reached. The client
// would wait for one until its time is up, and not report the reason.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

// Close ends the connections. Calls under way fail.
func (c *Client) Close() error {
	c.closeOnce.Do(func() {
		c.end()
		if err := c.KV.Close(); err != nil && !errors.Is(err, context.Canceled) {
			c.closeErr = c.Explain(err)
		}
	})
	return c.closeErr
}

// Config returns the client's configuration.
func (c *Client) Config() Config { return c.cfg }

// Get reads a key, or the range that the options name.
func (c *Client) Get(ctx context.Context, key string, options ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	err = c.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = c.KV.Get(ctx, key, options...)
		return err
	})
	return resp, err
}
