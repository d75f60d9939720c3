package redisconn

import (
	"context"
	"crypto/tls"
	"sync"
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
	tlsConfig, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	if !isSentinel(c.Scheme) {
		network := "tcp"
		if c.Scheme == SchemeUnix {
			network = "unix"
		}
		return redis.NewClient(&redis.Options{
			Network: network, Addr: c.Addrs[0], DB: c.DB, CredentialsProviderContext: c.credentials, TLSConfig: tlsConfig,
			Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true,
			// An operation decides itself whether it can be repeated.
			MaxRetries: -1, DialerRetries: 1,
			DialTimeout: dialTimeout, ReadTimeout: answerTimeout, WriteTimeout: answerTimeout,
			PoolSize: poolSize, PoolTimeout: answerTimeout, ConnMaxIdleTime: maxIdleTime,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		}), nil
	}
	sentinelPassword, err := connurl.Secret(nil).Password(c.SentinelPasswordFile)
	if err != nil {
		return nil, err
	}
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: c.Master, SentinelAddrs: c.Addrs, SentinelUsername: c.SentinelUsername, SentinelPassword: sentinelPassword,
		DB: c.DB, CredentialsProviderContext: c.credentials, TLSConfig: tlsConfig,
		Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true,
		MaxRetries: -1, DialerRetries: 1,
		DialTimeout: dialTimeout, ReadTimeout: answerTimeout, WriteTimeout: answerTimeout,
		PoolSize: poolSize, PoolTimeout: answerTimeout, ConnMaxIdleTime: maxIdleTime,
	}), nil
}

// credentials is called for each new connection, so that a password file can be replaced
// while the program runs.
func (c Config) credentials(context.Context) (username, password string, err error) {
	password, err = c.password.Password(c.PasswordFile)
	return c.Username, password, err
}

func (c Config) tlsConfig() (*tls.Config, error) {
	if !isTLS(c.Scheme) {
		return nil, nil
	}
	return connurl.TLS(c.CAFile, c.CertFile, c.KeyFile)
}
