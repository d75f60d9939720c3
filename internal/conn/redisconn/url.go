package redisconn

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// The schemes.
const (
	schemeTCP         = "redis"
	schemeTLS         = "rediss"
	SchemeUnix        = "redis+unix"
	schemeSentinel    = "redis+sentinel"
	schemeSentinelTLS = "rediss+sentinel"
)

const (
	// DefaultPrefix has a hash tag, so that all keys are in one slot of a
	// server that counts slots.
	DefaultPrefix = "{kazahana}:"

	defaultPort         = "6379"
	defaultSentinelPort = "26379"

	maxPrefix      = 100
	maxDB          = 1 << 20
	maxMinReplicas = 100
)

// Config says which Redis to use, and how far it is trusted.
type Config struct {
	Scheme string
	Addrs  []string // host:port, of the server or of the sentinels; or the path of a Unix socket
	Master string   // the sentinels' name of the set; empty without sentinels
	DB     int
	Prefix string // of all keys

	Username             string
	password             connurl.Secret
	PasswordFile         string
	SentinelUsername     string
	SentinelPasswordFile string

	CAFile, CertFile, KeyFile string

	// MinReplicas is how many replicas must confirm a write that is promised.
	MinReplicas int
	// FailoverFence is how long a user of the store waits where another
	// incarnation may have forgotten something, instead of the user's choice, where
	// FailoverFenceSet.
	FailoverFence    time.Duration
	FailoverFenceSet bool
	// MaxLockTTL is the longest term of a lock in this store; 0
	// where the URL does not say.
	MaxLockTTL time.Duration

	// Tests only.
	NowMS       func() int64  // replaces the server's clock in scripts
	ConfirmWait time.Duration // replaces confirmWait
}

// Schemes returns the URL schemes of Redis.
func Schemes() []string {
	return []string{schemeTCP, schemeTLS, SchemeUnix, schemeSentinel, schemeSentinelTLS}
}

// Params returns the parameters of a URL of the scheme that this package reads.
func Params(scheme string) []string {
	all := []string{"prefix", "min_replicas", "failover_fence", "max_lock_ttl", "username", "password_file"}
	if scheme == SchemeUnix {
		all = append(all, "db")
	}
	if isSentinel(scheme) {
		all = append(all, "sentinel_username", "sentinel_password_file")
	}
	if isTLS(scheme) {
		all = append(all, "ca_file", "cert_file", "key_file")
	}
	return all
}

func isSentinel(scheme string) bool { return scheme == schemeSentinel || scheme == schemeSentinelTLS }

func isTLS(scheme string) bool { return scheme == schemeTLS || scheme == schemeSentinelTLS }

// ParseURL reads a URL of Redis. also names the parameters that the caller takes
// besides those of Params; it gets them back as rest. ParseURL touches neither
// the network nor a file. Errors do not repeat a text that may be a password.
//
// It takes the URL as text, since package net/url refuses a list of hosts.
func ParseURL(rawURL string, also []string) (cfg Config, rest url.Values, err error) {
	scheme, text, _ := strings.Cut(rawURL, ":")
	cfg = Config{Scheme: strings.ToLower(scheme), Prefix: DefaultPrefix}
	if !slices.Contains(Schemes(), cfg.Scheme) {
		return Config{}, nil, fmt.Errorf("the scheme of a Redis URL is one of %s", strings.Join(Schemes(), ", "))
	}
	if strings.Contains(text, "#") {
		return Config{}, nil, fmt.Errorf("the provider URL %s:... has a '#': in a password or a path, write %%23", cfg.Scheme)
	}
	place, rawQuery, _ := strings.Cut(text, "?")
	if err := cfg.parsePlace(place); err != nil {
		return Config{}, nil, err
	}
	own := Params(cfg.Scheme)
	q, err := connurl.ParseQuery(rawQuery, slices.Concat(also, own))
	if err != nil {
		return Config{}, nil, err
	}
	if err := cfg.parseParams(q); err != nil {
		return Config{}, nil, err
	}
	for _, name := range own {
		q.Del(name)
	}
	return cfg, q, cfg.Validate()
}

// parsePlace reads the text between scheme and query.
func (c *Config) parsePlace(place string) error {
	authority, path := "", place
	if after, ok := strings.CutPrefix(place, "//"); ok {
		authority, path = after, ""
		if i := strings.IndexByte(after, '/'); i >= 0 {
			authority, path = after[:i], after[i:]
		}
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		var err error
		if c.Username, c.password, err = connurl.User(authority[:i]); err != nil {
			return err
		}
		authority = authority[i+1:]
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		return fmt.Errorf("the provider URL %s:... has a '%%' in its path that is not followed by two hex digits", c.Scheme)
	}
	if c.Scheme == SchemeUnix {
		return c.parseUnix(authority, path)
	}
	return c.parseHosts(authority, path)
}

func (c *Config) parseUnix(authority, path string) error {
	if authority != "" || !filepath.IsAbs(path) {
		return fmt.Errorf("%s: needs the absolute path of a socket, for example %s:/run/redis/redis.sock", c.Scheme, c.Scheme)
	}
	c.Addrs = []string{filepath.Clean(path)}
	return nil
}

func (c *Config) parseHosts(authority, path string) error {
	example := c.Scheme + "://host:6379/0"
	port := defaultPort
	if isSentinel(c.Scheme) {
		example = c.Scheme + "://host1:26379,host2:26379/mymaster/0"
		port = defaultSentinelPort
	}
	for host := range strings.SplitSeq(authority, ",") {
		addr, ok := connurl.Address(host, port)
		if !ok {
			return fmt.Errorf("%s: needs a host, for example %s", c.Scheme, example)
		}
		c.Addrs = append(c.Addrs, addr)
	}
	if len(c.Addrs) > 1 && !isSentinel(c.Scheme) {
		return fmt.Errorf("%s: takes one host; several are for sentinels: %s+sentinel://host1:26379,host2:26379/mymaster/0", c.Scheme, c.Scheme)
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if isSentinel(c.Scheme) {
		if parts[0] == "" || strings.ContainsAny(parts[0], "@ ") {
			return fmt.Errorf("%s: needs the name that the sentinels give the set, for example %s", c.Scheme, example)
		}
		c.Master, parts = parts[0], parts[1:]
	}
	if len(parts) > 1 {
		return fmt.Errorf("%s: the path has too many parts: write %s", c.Scheme, example)
	}
	if len(parts) == 1 && parts[0] != "" {
		return c.parseDB(parts[0])
	}
	return nil
}

func (c *Config) parseDB(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxDB {
		return fmt.Errorf("%s: the database is a number, usually 0", c.Scheme)
	}
	c.DB = n
	return nil
}

func (c *Config) parseParams(q url.Values) error {
	if v, ok := q["prefix"]; ok {
		c.Prefix = v[0]
	}
	if v, ok := q["db"]; ok {
		if err := c.parseDB(v[0]); err != nil {
			return err
		}
	}
	if q.Has("username") {
		if c.Username != "" {
			return errors.New("the provider URL has a user and a parameter username: give one of them")
		}
		c.Username = q.Get("username")
	}
	c.PasswordFile = q.Get("password_file")
	if c.PasswordFile != "" && c.password != nil {
		return errors.New("the provider URL has a password and a parameter password_file: give one of them")
	}
	c.SentinelUsername, c.SentinelPasswordFile = q.Get("sentinel_username"), q.Get("sentinel_password_file")
	c.CAFile, c.CertFile, c.KeyFile = q.Get("ca_file"), q.Get("cert_file"), q.Get("key_file")
	if v, ok := q["min_replicas"]; ok {
		n, err := strconv.Atoi(v[0])
		if err != nil || n < 0 || n > maxMinReplicas {
			return fmt.Errorf("min_replicas=%s: write how many replicas must confirm a grant, for example min_replicas=1", v[0])
		}
		c.MinReplicas = n
	}
	c.FailoverFenceSet = q.Has("failover_fence")
	var err1, err2 error
	c.FailoverFence, err1 = connurl.Milliseconds(q, "failover_fence")
	c.MaxLockTTL, err2 = connurl.MaxLockTTL(q)
	return cmp.Or(err1, err2)
}

// Validate reports what no server can be reached by.
func (c Config) Validate() error {
	if len(c.Addrs) == 0 {
		return errors.New("the Redis server has no address")
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("cert_file and key_file belong together: give both or neither")
	}
	printable := func(r rune) bool { return r > ' ' && r < 0x7f }
	if c.Prefix == "" || len(c.Prefix) > maxPrefix || strings.ContainsFunc(c.Prefix, func(r rune) bool { return !printable(r) }) {
		return fmt.Errorf("prefix: what keys begin with is 1 to %d printable ASCII characters without spaces, by default %s", maxPrefix, DefaultPrefix)
	}
	return nil
}

// Place names the server and the keys, without secrets.
func (c Config) Place() string {
	place := fmt.Sprintf("%s://%s/%d", c.Scheme, c.Addrs[0], c.DB)
	switch {
	case c.Scheme == SchemeUnix && c.DB == 0:
		place = c.Scheme + ":" + c.Addrs[0]
	case c.Scheme == SchemeUnix:
		place = connurl.With(c.Scheme+":"+c.Addrs[0], "db", strconv.Itoa(c.DB))
	case isSentinel(c.Scheme):
		place = fmt.Sprintf("%s://%s/%s/%d", c.Scheme, strings.Join(c.Addrs, ","), c.Master, c.DB)
	}
	if c.Prefix != DefaultPrefix {
		place = connurl.With(place, "prefix", c.Prefix)
	}
	return place
}
