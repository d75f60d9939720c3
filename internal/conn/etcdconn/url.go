package etcdconn

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

const (
	// DefaultPrefix begins every key, unless the URL says otherwise.
	DefaultPrefix = "/kazahana/"
	// defaultPort is etcd's for clients.
	defaultPort = "2379"

	maxPrefixBytes    = 256
	maxEndpoints      = 32
	exampleURL        = "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379"
	exampleAuthParams = "username=kazahana&password_file=/etc/kazahana/etcd-password"
)

// Config says which etcd to use.
type Config struct {
	Endpoints []string // host:port
	Prefix    string   // of every key; ends with '/'

	Username     string
	PasswordFile string // read at Open, and at each login

	TLS      bool
	CAFile   string // PEM; empty means the system's
	CertFile string // this client's certificate and key, PEM
	KeyFile  string
}

// Params returns the parameters of an etcd: URL that this package reads.
func Params() []string {
	return []string{"prefix", "username", "password_file", "tls", "ca_file", "cert_file", "key_file"}
}

// ParseURL parses etcd://HOST:PORT,HOST:PORT,... . also names the caller's parameters
// besides those of Params; they are returned as rest. ParseURL makes no connection and
// reads no file. Errors repeat no part of the URL that may hold a secret.
//
// It splits the host list itself: net/url rejects several HOST:PORT pairs.
func ParseURL(raw string, also []string) (cfg Config, rest url.Values, err error) {
	_, place, ok := strings.Cut(raw, "://")
	if !ok {
		return Config{}, nil, fmt.Errorf("etcd: write the members' addresses after two slashes, for example %s", exampleURL)
	}
	if strings.ContainsRune(place, '#') {
		return Config{}, nil, errors.New("etcd: the URL has something after '#'; in a parameter, write %23")
	}
	hosts, rawQuery, _ := strings.Cut(place, "?")
	if strings.ContainsRune(hosts, '@') {
		return Config{}, nil, fmt.Errorf("etcd: the URL must not hold a user or a password; write %s", exampleAuthParams)
	}
	endpoints, err := parseEndpoints(strings.TrimSuffix(hosts, "/"))
	if err != nil {
		return Config{}, nil, err
	}
	q, err := connurl.ParseQuery(rawQuery, slices.Concat(also, Params()))
	if err != nil {
		return Config{}, nil, err
	}
	cfg = Config{
		Endpoints: endpoints, Prefix: DefaultPrefix,
		Username: q.Get("username"), PasswordFile: q.Get("password_file"),
		CAFile: q.Get("ca_file"), CertFile: q.Get("cert_file"), KeyFile: q.Get("key_file"),
	}
	if q.Has("prefix") {
		cfg.Prefix = q.Get("prefix")
	}
	if err := cfg.chooseTLS(q); err != nil {
		return Config{}, nil, err
	}
	for _, name := range Params() {
		q.Del(name)
	}
	return cfg, q, cfg.Validate()
}

// chooseTLS: the connection is encrypted when any of the files is named, or
// tls=true says so.
func (c *Config) chooseTLS(q url.Values) error {
	files := c.CAFile != "" || c.CertFile != "" || c.KeyFile != ""
	c.TLS = files
	if !q.Has("tls") {
		return nil
	}
	on, err := strconv.ParseBool(q.Get("tls"))
	switch {
	case err != nil:
		return errors.New("etcd: tls is true or false")
	case files && !on:
		return errors.New("etcd: tls=false contradicts ca_file, cert_file and key_file")
	}
	c.TLS = on
	return nil
}

func parseEndpoints(hosts string) (endpoints []string, err error) {
	for h := range strings.SplitSeq(hosts, ",") {
		address, ok := connurl.Address(h, defaultPort)
		if !ok {
			return nil, fmt.Errorf("etcd: an address is malformed: write host:port, several separated by commas, for example %s", exampleURL)
		}
		endpoints = append(endpoints, address)
	}
	if len(endpoints) > maxEndpoints {
		return nil, fmt.Errorf("etcd: the URL names %d members, and may name %d", len(endpoints), maxEndpoints)
	}
	return endpoints, nil
}

// Validate returns an error if no server can be reached with this configuration.
func (c Config) Validate() error {
	switch {
	case len(c.Endpoints) == 0:
		return errors.New("etcd: no member is named")
	case len(c.Prefix) > maxPrefixBytes || !strings.HasSuffix(c.Prefix, "/") || strings.ContainsFunc(c.Prefix, unicode.IsControl):
		return fmt.Errorf("etcd: prefix: it ends with '/', has at most %d bytes and no control character, for example prefix=%s", maxPrefixBytes, DefaultPrefix)
	case (c.Username == "") != (c.PasswordFile == ""):
		return fmt.Errorf("etcd: username and password_file belong together, for example %s", exampleAuthParams)
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("etcd: cert_file and key_file belong together")
	}
	return nil
}

// Place names the members and the keys, without secrets.
func (c Config) Place() string {
	place := "etcd://" + strings.Join(c.Endpoints, ",")
	if c.Prefix != DefaultPrefix {
		place = connurl.With(place, "prefix", c.Prefix)
	}
	return place
}

// password reads the file.
func (c Config) password() (string, error) { return connurl.Secret(nil).Password(c.PasswordFile) }

// tlsConfig is nil if the connection is not encrypted.
func (c Config) tlsConfig() (*tls.Config, error) {
	if !c.TLS {
		return nil, nil
	}
	t, err := connurl.TLS(c.CAFile, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return t, nil
}
