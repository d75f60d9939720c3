package postgresconn

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

const (
	// DefaultSchema is the schema of the tables, unless the URL says otherwise.
	DefaultSchema = "kazahana"

	scheme          = "postgres"
	schemeLong      = "postgresql"
	defaultPort     = "5432"
	defaultUser     = "kazahana"
	defaultPoolSize = 8
	maxPoolSize     = 1000
	exampleURL      = "postgres://kazahana@db.example.com/kazahana?password_file=/etc/kazahana/postgres-password"
	// SSLDisable is the SSLMode without TLS.
	SSLDisable  = "disable"
	modeRequire = "require"
	modeFull    = "verify-full"
	commitOn    = "on"
)

// Config says which PostgreSQL to use, and how far it is trusted.
type Config struct {
	Hosts    []string // host:port; of several, the one for writes is used
	Dir      string   // of the Unix socket, instead of Hosts
	Port     string   // of the Unix socket
	Database string
	Schema   string

	Username     string
	password     connurl.Secret
	PasswordFile string // read at each connection

	SSLMode                   string
	CAFile, CertFile, KeyFile string

	SynchronousCommit string
	MaxConnections    int
	// FailoverFence is how long nothing is granted after a failover, instead of the
	// longest that a grant lasts, where FailoverFenceSet.
	FailoverFence    time.Duration
	FailoverFenceSet bool
	// MaxLockTTL is the longest term of a lock; 0 where the URL does not say.
	MaxLockTTL time.Duration

	// Tests only.
	Clock string // an SQL expression in Unix ms that replaces the server's clock
}

// Schemes returns the URL schemes of PostgreSQL.
func Schemes() []string { return []string{scheme, schemeLong} }

// Params returns the parameters of a URL that this package reads.
func Params() []string {
	return []string{
		"schema", "host", "port", "username", "password_file", "sslmode", "ca_file", "cert_file", "key_file",
		"synchronous_commit", "failover_fence", "max_lock_ttl", "max_connections",
	}
}

// ParseURL reads postgres://USER@HOST:PORT,.../DATABASE?... . also names the parameters
// that the caller takes besides those of Params; it gets them back as rest. ParseURL
// touches neither the network nor a file. Errors do not repeat a text that may be a
// password.
func ParseURL(raw string, also []string) (cfg Config, rest url.Values, err error) {
	_, place, ok := strings.Cut(raw, "://")
	if !ok {
		return Config{}, nil, fmt.Errorf("postgres: write the server's address after two slashes, for example %s", exampleURL)
	}
	if strings.ContainsRune(place, '#') {
		return Config{}, nil, errors.New("postgres: the URL has something after '#'; in a password or a parameter, write %23")
	}
	place, rawQuery, _ := strings.Cut(place, "?")
	authority, database, _ := strings.Cut(place, "/")
	cfg = Config{Schema: DefaultSchema, Username: defaultUser, SynchronousCommit: commitOn, MaxConnections: defaultPoolSize}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		name, password, err := connurl.User(authority[:at])
		if err != nil {
			return Config{}, nil, err
		}
		cfg.Username, cfg.password = cmp.Or(name, cfg.Username), password
		authority = authority[at+1:]
	}
	if err := checkHosts(authority); err != nil { // first: after a '?' in a password there are no parameters
		return Config{}, nil, err
	}
	if cfg.Database, err = url.PathUnescape(database); err != nil || strings.Contains(cfg.Database, "/") {
		return Config{}, nil, fmt.Errorf("postgres: the path of the URL is the name of a database, for example %s", exampleURL)
	}
	q, err := connurl.ParseQuery(rawQuery, slices.Concat(also, Params()))
	if err != nil {
		return Config{}, nil, err
	}
	if err := cmp.Or(cfg.parseHosts(authority, q), cfg.parseParams(q)); err != nil {
		return Config{}, nil, err
	}
	for _, name := range Params() {
		q.Del(name)
	}
	return cfg, q, cfg.Validate()
}

// parseHosts reads the servers' addresses, or the directory of a Unix socket.
func (c *Config) parseHosts(authority string, q url.Values) error {
	if authority == "" {
		c.Dir, c.Port = q.Get("host"), cmp.Or(q.Get("port"), defaultPort)
		if _, ok := connurl.Address("localhost:"+c.Port, ""); !ok || !filepath.IsAbs(c.Dir) {
			return fmt.Errorf("postgres: the URL names no server: write %s, or postgres:///kazahana?host=/var/run/postgresql for a Unix socket", exampleURL)
		}
		return nil
	}
	if q.Has("host") || q.Has("port") {
		return errors.New("postgres: host= and port= are for a Unix socket (postgres:///kazahana?host=/var/run/postgresql); the URL names a server too")
	}
	for text := range strings.SplitSeq(authority, ",") {
		address, _ := connurl.Address(text, defaultPort)
		c.Hosts = append(c.Hosts, address)
	}
	return nil
}

// checkHosts reports an address that is malformed, if there are any addresses.
func checkHosts(authority string) error {
	for text := range strings.SplitSeq(authority, ",") {
		if _, ok := connurl.Address(text, defaultPort); !ok && authority != "" {
			return fmt.Errorf("postgres: an address is malformed: write host:port, several separated by commas, for example %s; in a password, write %%2F for '/' and %%3F for '?'", exampleURL)
		}
	}
	return nil
}

func (c *Config) parseParams(q url.Values) error {
	c.Database = cmp.Or(c.Database, DefaultSchema)
	c.Schema = cmp.Or(q.Get("schema"), c.Schema)
	c.Username = cmp.Or(q.Get("username"), c.Username)
	c.PasswordFile = q.Get("password_file")
	c.CAFile, c.CertFile, c.KeyFile = q.Get("ca_file"), q.Get("cert_file"), q.Get("key_file")
	c.SynchronousCommit = cmp.Or(q.Get("synchronous_commit"), c.SynchronousCommit)
	if c.SSLMode = q.Get("sslmode"); c.SSLMode == "" {
		c.SSLMode = modeFull
		if c.isLocal() && c.CAFile == "" && c.CertFile == "" {
			c.SSLMode = SSLDisable
		}
	}
	if v, ok := q["max_connections"]; ok {
		n, err := strconv.Atoi(v[0])
		if err != nil || n < 1 || n > maxPoolSize {
			return fmt.Errorf("max_connections=%s: write how many connections this process may have, 1 to %d", v[0], maxPoolSize)
		}
		c.MaxConnections = n
	}
	c.FailoverFenceSet = q.Has("failover_fence")
	var err1, err2 error
	c.FailoverFence, err1 = connurl.Milliseconds(q, "failover_fence")
	c.MaxLockTTL, err2 = connurl.MaxLockTTL(q)
	return cmp.Or(err1, err2)
}

// isLocal reports whether the server is on this host, with no listener in between.
func (c Config) isLocal() bool {
	for _, h := range c.Hosts {
		host, _, _ := net.SplitHostPort(h)
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

var validSchema = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// Validate reports what no server can be reached by.
func (c Config) Validate() error {
	switch {
	case len(c.Hosts) == 0 && c.Dir == "":
		return errors.New("postgres: no server is named")
	case !validSchema.MatchString(c.Schema):
		return errors.New("postgres: schema: it is 1 to 48 lower-case letters, digits and '_', for example schema=kazahana")
	case c.PasswordFile != "" && c.password != nil:
		return errors.New("postgres: the URL has a password and a parameter password_file: give one of them")
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("postgres: cert_file and key_file belong together: give both or neither")
	case !slices.Contains([]string{SSLDisable, modeRequire, modeFull}, c.SSLMode):
		return errors.New("postgres: sslmode is disable, require (encrypts, and trusts any server) or verify-full; prefer, allow and verify-ca are not supported")
	case c.SSLMode == SSLDisable && c.CAFile+c.CertFile != "":
		return errors.New("postgres: sslmode=disable contradicts ca_file, cert_file and key_file")
	case c.SSLMode == modeRequire && c.CAFile != "":
		return errors.New("postgres: sslmode=require does not look at the server's certificate; with ca_file, write sslmode=verify-full")
	case !slices.Contains([]string{commitOn, "remote_apply", "remote_write", "local"}, c.SynchronousCommit):
		return errors.New("postgres: synchronous_commit is on, remote_apply, remote_write or local; off would lose grants without a trace")
	}
	return nil
}

// Place names the server and the tables, without secrets.
func (c Config) Place() string {
	place := fmt.Sprintf("%s://%s/%s", scheme, strings.Join(c.Hosts, ","), url.PathEscape(c.Database))
	if c.Dir != "" {
		place = connurl.With(connurl.With(place, "host", c.Dir), "port", c.Port)
	}
	if c.Schema != DefaultSchema {
		place = connurl.With(place, "schema", c.Schema)
	}
	return place
}
