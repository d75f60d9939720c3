package httpconn

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// maxServers limits the list of URLs, among which a call divides its time.
const maxServers = 16

// Config names the servers and the credentials.
type Config struct {
	Servers   []*url.URL // scheme, host and path; at least one
	TokenFile string     // bearer token; "" = none
	CAFile    string     // certificates to trust instead of the system's; "" = the system's
	CertFile  string     // client certificate, with KeyFile; "" = none
	KeyFile   string
	// Transport carries requests to the servers; nil means TCP, or the Unix socket. A
	// simulated network has one of its own.
	Transport http.RoundTripper
}

// SchemeUnix is the scheme of a lease server on a Unix socket.
const SchemeUnix = "http+unix"

// Schemes returns the schemes that ParseURL knows.
func Schemes() []string { return []string{"http", "https", SchemeUnix} }

// ParseURL reads http://HOST:PORT[/PATH][,http://HOST:PORT...][?PARAMETERS] and
// http+unix:PATH[?PARAMETERS]. A server after the first may leave out the scheme.
// Errors repeat no part of the URL that may hold a secret.
func ParseURL(raw string) (Config, error) {
	list, query, _ := strings.Cut(raw, "?")
	if strings.Contains(raw, "#") {
		return Config{}, errors.New("the provider URL has a part after '#', which an HTTP URL of servers does not take")
	}
	q, err := connurl.ParseQuery(query, []string{"token_file", "ca_file", "cert_file", "key_file"})
	if err != nil {
		return Config{}, err
	}
	cfg := Config{
		TokenFile: q.Get("token_file"), CAFile: q.Get("ca_file"), CertFile: q.Get("cert_file"), KeyFile: q.Get("key_file"),
	}
	if scheme, path, _ := strings.Cut(list, ":"); strings.EqualFold(scheme, SchemeUnix) {
		u, err := parseSocket(path)
		if err != nil {
			return Config{}, err
		}
		cfg.Servers = []*url.URL{u}
		return cfg, cfg.check()
	}
	first := ""
	for i, text := range strings.Split(list, ",") {
		u, err := parseServer(text, first)
		if err != nil {
			return Config{}, fmt.Errorf("server %d of the provider URL %w", i+1, err)
		}
		first = u.Scheme
		if slices.ContainsFunc(cfg.Servers, func(other *url.URL) bool { return *other == *u }) {
			return Config{}, fmt.Errorf("server %d of the provider URL is given twice", i+1)
		}
		cfg.Servers = append(cfg.Servers, u)
	}
	return cfg, cfg.check()
}

// parseSocket returns the socket's URL: Path is its place, Opaque its form in messages.
func parseSocket(text string) (*url.URL, error) {
	path, err := url.PathUnescape(text)
	if err != nil || !filepath.IsAbs(path) {
		return nil, fmt.Errorf("the provider URL names no socket: write %s:/run/kazahana/lease-server.sock, with special characters percent-encoded", SchemeUnix)
	}
	path = filepath.Clean(path)
	return &url.URL{Scheme: SchemeUnix, Path: path, Opaque: (&url.URL{Path: path}).EscapedPath()}, nil
}

func parseServer(text, scheme string) (*url.URL, error) {
	if !strings.Contains(text, "://") && scheme != "" {
		text = scheme + "://" + text
	}
	u, err := url.Parse(strings.TrimSpace(text))
	switch {
	case err != nil:
		return nil, errors.New("is malformed: write http://HOST:PORT or https://HOST:PORT, several separated by commas")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "" || u.Opaque != "", strings.HasSuffix(u.Host, ":"):
		return nil, errors.New("is no address: write http://HOST:PORT or https://HOST:PORT, several separated by commas")
	case u.User != nil:
		return nil, errors.New("has a user or password in it: put the token into a file, and name it with token_file=")
	case scheme != "" && u.Scheme != scheme:
		return nil, errors.New("has another scheme than the first: the token would be sent in clear to one of them")
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/")}, nil
}

func (c Config) check() error {
	if len(c.Servers) > maxServers {
		return fmt.Errorf("the provider URL has %d servers, and may have %d", len(c.Servers), maxServers)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("cert_file and key_file of the provider URL go together: one of them is missing")
	}
	if c.Servers[0].Scheme != "https" && (c.CAFile != "" || c.CertFile != "") {
		return errors.New("ca_file and cert_file of the provider URL are of no use without TLS: write https://")
	}
	return nil
}

// Names shows the servers, separated by commas.
func (c Config) Names() string {
	servers := make([]string, len(c.Servers))
	for i, u := range c.Servers {
		servers[i] = u.String()
	}
	return strings.Join(servers, ",")
}
