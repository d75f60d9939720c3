package redisconn

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/kazahana/kazahana/internal/conn/connurl"
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
