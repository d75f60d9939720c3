package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/clienttls"
)

const (
	// DefaultPrefix begins every key, unless the URL says otherwise.
	DefaultPrefix = "/kazahana/"
	// defaultPort is etcd's for clients.
	defaultPort = "2379"

	maxPrefixBytes    = 256
	maxEndpoints      = 32
	maxPasswordBytes  = 4096
	exampleURL        = "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379"
	exampleAuthParams = "username=kazahana&password_file=/etc/kazahana/etcd-password"
)

// Config says which etcd to use, and what to grant from it.
type Config struct {
	Endpoints []string // host:port
	Prefix    string   // of every key; ends with '/'
	Services  provider.Services
	NowMS     func() int64 // this host's clock in Unix ms; nil means the wall clock

	Username     string
	PasswordFile string // read at Open

	TLS      bool
	CAFile   string // PEM; empty means the system's
	CertFile string // this client's certificate and key, PEM
	KeyFile  string

	// Host tells this host's clock from others'; empty means the host's name.
	Host string
}

// Params returns the parameters that an etcd: URL takes.
func Params() []string {
	return append(provider.TermsParams(), "prefix", "username", "password_file", "tls", "ca_file", "cert_file", "key_file")
}

// ParseURL reads etcd://HOST:PORT,HOST:PORT,... . The URL's parameters set the
// terms of services that named does not have. It reaches out to nothing and
// reads no file. Errors repeat no part of the URL that may hold a secret.
//
// It takes the URL as text, because net/url knows no list of hosts.
func ParseURL(raw string, named map[string]provider.Terms, nowMS func() int64) (Config, error) {
	_, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return Config{}, fmt.Errorf("etcd: write the members' addresses after two slashes, for example %s", exampleURL)
	}
	if strings.ContainsRune(rest, '#') {
		return Config{}, errors.New("etcd: the URL has something after '#'; in a parameter, write %23")
	}
	hosts, rawQuery, _ := strings.Cut(rest, "?")
	if strings.ContainsRune(hosts, '@') {
		return Config{}, fmt.Errorf("etcd: the URL must not hold a user or a password; write %s", exampleAuthParams)
	}
	endpoints, err := parseEndpoints(strings.TrimSuffix(hosts, "/"))
	if err != nil {
		return Config{}, err
	}
	q, err := provider.ParseQuery(rawQuery, Params())
	if err != nil {
		return Config{}, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return Config{}, err
	}
	cfg := Config{
		Endpoints: endpoints, Prefix: DefaultPrefix, NowMS: nowMS,
		Services: provider.Services{Default: terms, Named: named},
		Username: q.Get("username"), PasswordFile: q.Get("password_file"),
		CAFile: q.Get("ca_file"), CertFile: q.Get("cert_file"), KeyFile: q.Get("key_file"),
	}
	if q.Has("prefix") {
		cfg.Prefix = q.Get("prefix")
	}
	if err := cfg.chooseTLS(q); err != nil {
		return Config{}, err
	}
	return cfg, cfg.validate()
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

func parseEndpoints(hosts string) ([]string, error) {
	bad := func() error {
		return fmt.Errorf("etcd: an address is malformed: write host:port, several separated by commas, for example %s", exampleURL)
	}
	var endpoints []string
	for h := range strings.SplitSeq(hosts, ",") {
		host, port, err := net.SplitHostPort(h)
		if err != nil { // without a port, or no address at all
			host, port = strings.TrimSuffix(strings.TrimPrefix(h, "["), "]"), defaultPort
			if strings.Contains(host, ":") && net.ParseIP(host) == nil {
				return nil, bad()
			}
		}
		n, err := strconv.ParseUint(port, 10, 16)
		unfit := func(r rune) bool {
			return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune("/[]%", r)
		}
		if err != nil || n == 0 || host == "" || strings.ContainsFunc(host, unfit) {
			return nil, bad()
		}
		endpoints = append(endpoints, net.JoinHostPort(host, port))
	}
	if len(endpoints) > maxEndpoints {
		return nil, fmt.Errorf("etcd: the URL names %d members, and may name %d", len(endpoints), maxEndpoints)
	}
	return endpoints, nil
}

func (c Config) validate() error {
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
	return c.Services.Validate()
}

// Info describes the provider that Open opens.
func (c Config) Info() provider.Info {
	u := "etcd://" + strings.Join(c.Endpoints, ",")
	q := url.Values{}
	if c.Prefix != DefaultPrefix {
		q.Set("prefix", c.Prefix)
	}
	if pool := c.Services.Default.Pool; pool != provider.DefaultPool {
		q.Set("pool", pool)
	}
	if ids := c.Services.Default.IDs; !ids.IsAll() {
		q.Set("ids", ids.String())
	}
	if len(q) > 0 {
		u += "?" + strings.ReplaceAll(q.Encode(), "%2F", "/")
	}
	return provider.Info{Name: "etcd", URL: u, Scope: provider.ScopeShared, Coordinated: true}
}

// password reads the file, without the line's end that editors add.
func (c Config) password() (string, error) {
	if c.PasswordFile == "" {
		return "", nil
	}
	b, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("etcd: password_file: %w", err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if password == "" || len(password) > maxPasswordBytes {
		return "", fmt.Errorf("etcd: password_file %s: it must hold the password and nothing else", c.PasswordFile)
	}
	return password, nil
}

// tlsConfig is nil where the connection is not encrypted.
func (c Config) tlsConfig() (*tls.Config, error) {
	if !c.TLS {
		return nil, nil
	}
	t, err := clienttls.Config(c.CAFile, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return t, nil
}
