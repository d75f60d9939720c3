package redisconn

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	connurl "github.com/kazahana/kazahana/internal/conn/url"
)

// The connections. A daemon calls every few seconds at most; a lease server
// calls from many goroutines, which wait for each other's connections.
const (
	dialTimeout   = 3 * time.Second
	answerTimeout = 5 * time.Second // for one command, where the caller has no shorter deadline
	poolSize      = 16
	maxIdleTime   = 5 * time.Minute // shorter than what firewalls forget
)

// Silence keeps the client library from writing to standard error: it returns its messages
// as errors too.
var Silence = sync.OnceFunc(func() { redis.SetLogger(noLog{}) })

type noLog struct{}

// Printf implements the client library's logger.
func (noLog) Printf(context.Context, string, ...any) {}

// connect makes a client. It does not connect yet.
func (c Config) connect() (*redis.Client, error) {
	Silence()
	o := redis.UniversalOptions{
		Addrs: c.Addrs, DB: c.DB, CredentialsProviderContext: c.credentials, MasterName: c.Master, SentinelUsername: c.SentinelUsername,
		Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true,
		// An operation decides itself whether it can be repeated.
		MaxRetries: -1, DialerRetries: 1,
		DialTimeout: dialTimeout, ReadTimeout: answerTimeout, WriteTimeout: answerTimeout,
		PoolSize: poolSize, PoolTimeout: answerTimeout, ConnMaxIdleTime: maxIdleTime,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	var err error
	if isTLS(c.Scheme) {
		if o.TLSConfig, err = connurl.TLS(c.CAFile, c.CertFile, c.KeyFile); err != nil {
			return nil, err
		}
	}
	if isSentinel(c.Scheme) {
		if o.SentinelPassword, err = connurl.Secret(nil).Password(c.SentinelPasswordFile); err != nil {
			return nil, err
		}
		return redis.NewFailoverClient(o.Failover()), nil
	}
	simple := o.Simple()
	if o.TLSConfig == nil { // with TLS the client library does not look at a connection before its use
		simple.Dialer = dial
	}
	if c.Scheme == SchemeUnix {
		simple.Network = "unix"
	}
	return redis.NewClient(simple), nil
}

// credentials is called for each new connection, so that a password file can be replaced
// while the program runs.
func (c Config) credentials(context.Context) (username, password string, err error) {
	password, err = c.password.Password(c.PasswordFile)
	return c.Username, password, err
}

// dial connects as the client library does by itself.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: maxIdleTime}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &livelyConn{Conn: c}, nil
}

// livelyFor is how long a connection counts as alive after something came from it.
const livelyFor = 10 * time.Millisecond

// livelyConn is a connection that the client library asks the system about before each use only
// after a pause: where calls follow each other, that would be one system call in four.
type livelyConn struct {
	net.Conn
	heard time.Time // by the one call that uses the connection
}

// Read implements net.Conn.
func (c *livelyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil {
		c.heard = time.Now()
	} else {
		c.heard = time.Time{}
	}
	return n, err
}

// SyscallConn implements syscall.Conn.
func (c *livelyConn) SyscallConn() (syscall.RawConn, error) {
	if time.Since(c.heard) < livelyFor {
		return alive{}, nil
	}
	return c.Conn.(syscall.Conn).SyscallConn()
}

// alive is the file descriptor of a connection that need not be asked.
type alive struct{ syscall.RawConn }

// Read implements syscall.RawConn.
func (alive) Read(func(uintptr) bool) error { return nil }
