package postgresconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

const (
	// leastVersion is the oldest server that can be used, as server_version_num.
	leastVersion   = 140000
	connectTimeout = 3 * time.Second
	// maxIdleTime is short: each daemon calls every few minutes, and a server has room
	// for some hundred sessions.
	maxIdleTime = 30 * time.Second
)

// ErrServer: the server is not one to rely on.
var ErrServer = errors.New("this PostgreSQL server cannot be used")

// Client is a pool of sessions on one server. Its methods may be called by many
// goroutines.
type Client struct {
	cfg  Config
	pool *pgxpool.Pool
}

// Open prepares a pool. It reaches out to nothing yet.
func Open(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	pc, err := cfg.poolConfig()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		return nil, cfg.explain(err)
	}
	return &Client{cfg: cfg, pool: pool}, nil
}

// Config returns the client's configuration.
func (c *Client) Config() Config { return c.cfg }

// Close ends the sessions. It waits for calls under way.
func (c *Client) Close() error {
	c.pool.Close()
	return nil
}

// poolConfig fills all settings, so that none comes from the environment.
func (c Config) poolConfig() (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig("host=/ port=1 user=none database=none sslmode=disable passfile=" + os.DevNull)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	cc := pc.ConnConfig
	cc.Host, cc.Port, cc.TLSConfig, cc.Fallbacks = c.Dir, 0, nil, nil
	if c.Dir != "" {
		cc.Port = portOf(c.Port)
	}
	for i, h := range c.Hosts {
		host, port, _ := net.SplitHostPort(h)
		var own *tls.Config
		if tlsConfig != nil {
			own = tlsConfig.Clone()
			own.ServerName = host
		}
		if i == 0 {
			cc.Host, cc.Port, cc.TLSConfig = host, portOf(port), own
		} else {
			cc.Fallbacks = append(cc.Fallbacks, &pgconn.FallbackConfig{Host: host, Port: portOf(port), TLSConfig: own})
			cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
		}
	}
	cc.User, cc.Password, cc.Database, cc.ConnectTimeout = c.Username, "", c.Database, connectTimeout
	cc.RuntimeParams = map[string]string{"application_name": "kazahana"}
	cc.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			conn.CustomData()[warning] = n.Message
		}
	}
	pc.MaxConns, pc.MinConns, pc.MaxConnIdleTime, pc.HealthCheckPeriod = int32(c.MaxConnections), 0, maxIdleTime, maxIdleTime/2
	pc.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) (err error) {
		cc.Password, err = c.password.Password(c.PasswordFile)
		return err
	}
	pc.AfterConnect = c.prepare
	return pc, nil
}

// The notes of a session: a warning of the server, and when the session began.
const (
	warning = "warning"
	began   = "began"
)

func portOf(text string) uint16 {
	n, _ := strconv.ParseUint(text, 10, 16) // was checked
	return uint16(n)
}

func (c Config) tlsConfig() (*tls.Config, error) {
	if c.SSLMode == SSLDisable {
		return nil, nil
	}
	t, err := connurl.TLS(c.CAFile, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	t.InsecureSkipVerify = c.SSLMode == modeRequire
	return t, nil
}

// Settings of each session. A session that stops in the middle of a transaction gives
// its locks back after idleInTransaction. Other time-outs of the role or the database are set
// aside, as far as the server knows them: they would end sessions that listen, and calls here
// have time-outs of their own.
const (
	idleInTransaction = "10s"

	sessionSQL = `SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('server_encoding'),
		set_config('search_path', $1, false), set_config('synchronous_commit', $2, false),
		set_config('default_transaction_isolation', 'read committed', false), set_config('default_transaction_read_only', 'off', false),
		set_config('idle_in_transaction_session_timeout', '` + idleInTransaction + `', false),
		(SELECT count(set_config(name, '0', false)) FROM pg_settings
			WHERE name IN ('idle_session_timeout', 'statement_timeout', 'lock_timeout', 'transaction_timeout'))`
	// lifeSQL notes the server's life in the session. A transaction that finds it is in
	// a session that was prepared here.
	lifeSQL = `SELECT set_config('kazahana.life', (SELECT system_identifier FROM pg_control_system())
		|| '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
		|| CASE current_setting('fsync') WHEN 'off' THEN '/' || extract(epoch FROM pg_postmaster_start_time()) ELSE '' END, false)`
)

// prepare makes a session ready, and refuses a server that cannot be relied on.
func (c Config) prepare(ctx context.Context, conn *pgx.Conn) error {
	conn.PgConn().CustomData()[began] = time.Now()
	var version int
	var standby bool
	var encoding string
	if err := conn.QueryRow(ctx, sessionSQL, pgx.Identifier{c.Schema}.Sanitize(), c.SynchronousCommit).
		Scan(&version, &standby, &encoding, nil, nil, nil, nil, nil, nil); err != nil {
		return err
	}
	switch {
	case version < leastVersion:
		return fmt.Errorf("%w: it is version %d, and %d is the oldest that can be used", ErrServer, version/10000, leastVersion/10000)
	case standby:
		return fmt.Errorf("%w: it is a standby, which takes no writes: name the primary, or all servers (postgres://a,b/%s)", ErrServer, c.Database)
	case encoding != "UTF8":
		return fmt.Errorf("%w: database %s has the encoding %s, and needs UTF8", ErrServer, c.Database, encoding)
	}
	_, err := conn.Exec(ctx, lifeSQL)
	return err
}

// Session returns a session for a caller that keeps it until it calls the function.
func (c *Client) Session(ctx context.Context) (*pgx.Conn, func(), error) {
	held, err := c.acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn := held.Hijack()
	return conn, func() { _ = conn.Close(context.Background()) }, nil // it is of no use to others
}

// acquire returns a session of the pool. Without one, nothing was sent.
func (c *Client) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return nil, connurl.NotSent(c.cfg.explain(err))
	}
	return conn, nil
}
