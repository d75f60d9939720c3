package doctor

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
)

// Postgres is what there is to know of a PostgreSQL server.
type Postgres struct {
	Place   string
	Err     error // it cannot be reached, or is refused
	Refused bool  // it can be reached, and is not one to rely on

	Version string
	Plain   bool // no TLS, and not on this host
	Fsync   bool
	New     bool   // there are no tables yet
	Lacks   string // a right that the user does not have; "" = none

	Standbys     int  // that follow the server
	Synchronous  bool // commits wait for some
	Fenced       bool
	FenceUntilMS int64
	FenceReason  string

	Used, Most int // connections
	// Trusted: the URL says that a failover loses nothing, or how long to wait.
	Trusted bool
}

// fullConnections is the part of max_connections that may be used before it is said.
const fullConnections = 0.9

// JudgePostgres judges a server.
func JudgePostgres(p Postgres) []Finding {
	switch {
	case p.Refused:
		return []Finding{finding("postgres.refused", "%v", p.Err)}
	case p.Err != nil:
		return []Finding{finding("postgres.unreachable", "%v", p.Err)}
	}
	var found []Finding
	if p.Plain {
		found = append(found, finding("postgres.plain", "%s is used without TLS", p.Place))
	}
	if p.Lacks != "" {
		found = append(found, finding("postgres.permission", "%s: the user may not %s", p.Place, p.Lacks))
	}
	if !p.Fsync {
		found = append(found, finding("postgres.fsync_off", "%s has fsync = off", p.Place))
	}
	if p.Fenced {
		found = append(found, finding("postgres.fenced", "%s: nothing is granted until %s: %s", p.Place, time.UnixMilli(p.FenceUntilMS).UTC().Format(time.RFC3339), p.FenceReason))
	}
	if p.Standbys > 0 && !p.Synchronous && !p.Trusted {
		found = append(found, finding("postgres.unconfirmed", "%s has %d standbys, and no grant waits for them", p.Place, p.Standbys))
	}
	if float64(p.Used) > fullConnections*float64(p.Most) {
		found = append(found, finding("postgres.connections", "%s has %d of %d connections in use", p.Place, p.Used, p.Most))
	}
	switch {
	case len(found) > 0:
	case p.New:
		found = append(found, finding("postgres.new", "%s: version %s; the tables are not there yet: the first lease makes them", p.Place, p.Version))
	default:
		found = append(found, finding("postgres.ok", "%s: version %s, %d standbys", p.Place, p.Version, p.Standbys))
	}
	return found
}

// ProbePostgres asks a server for its settings, and compares the clock with its own.
// It changes nothing.
func ProbePostgres(ctx context.Context, cfg postgresconn.Config, clock *Clock) (p Postgres) {
	p.Place, p.Trusted = cfg.Place(), cfg.FailoverFenceSet
	client, err := postgresconn.Open(cfg)
	if err != nil {
		p.Err = err
		return p
	}
	defer client.Close()
	conn, release, err := client.Session(ctx)
	if err != nil {
		p.Err, p.Refused = err, errors.Is(err, postgresconn.ErrServer)
		return p
	}
	defer release()
	if p.Err = p.ask(ctx, conn, cfg.Schema, clock); p.Err == nil && !p.New {
		p.Err = p.askFence(ctx, conn)
	}
	remote, tcp := conn.PgConn().Conn().RemoteAddr().(*net.TCPAddr)
	p.Plain = cfg.SSLMode == postgresconn.SSLDisable && tcp && !remote.IP.IsLoopback()
	return p
}

// ask reads the settings. A user without the right to see the standbys sees none.
func (p *Postgres) ask(ctx context.Context, conn *pgx.Conn, schema string, clock *Clock) error {
	at := reading{began: time.Now()}
	err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&at.other)
	at.ended = time.Now()
	if err != nil {
		return err
	}
	clock.compare(p.Place, at)
	return conn.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('fsync') = 'on', to_regclass('life') IS NULL,
		CASE WHEN to_regnamespace($1) IS NULL THEN CASE WHEN has_database_privilege(current_database(), 'CREATE') THEN '' ELSE 'create the schema ' || $1 END
			WHEN to_regclass('life') IS NULL THEN CASE WHEN has_schema_privilege($1, 'CREATE') THEN '' ELSE 'create tables in the schema ' || $1 END
			ELSE coalesce((SELECT 'read and write the table ' || $1 || '.' || relname FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'
				AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE')) LIMIT 1), '') END,
		(SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names') <> '',
		(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' OR backend_type IS NULL), current_setting('max_connections')::int`, schema).
		Scan(&p.Version, &p.Fsync, &p.New, &p.Lacks, &p.Standbys, &p.Synchronous, &p.Used, &p.Most)
}

// askFence reads whether the store is held back.
func (p *Postgres) askFence(ctx context.Context, conn *pgx.Conn) error {
	err := conn.QueryRow(ctx, `SELECT until_ms, reason, now.ms < until_ms FROM life, (SELECT extract(epoch FROM clock_timestamp())::bigint * 1000) now (ms) WHERE kind = 'leases'`).
		Scan(&p.FenceUntilMS, &p.FenceReason, &p.Fenced)
	if errors.Is(err, pgx.ErrNoRows) {
		p.New, err = true, nil
	}
	return err
}
