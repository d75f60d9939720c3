package httplease

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/connurl"
	"github.com/kazahana/kazahana/internal/leaseapi"
)

// Limits of the connections and of what a server may answer.
const (
	dialTimeout = 5 * time.Second
	// idleTimeout is shorter than a lease server's, so that the client is the one
	// to close a connection that nobody uses.
	idleTimeout    = 90 * time.Second
	maxIdlePerHost = 8
	maxHeaderBytes = 64 << 10
	maxTokenBytes  = 16 << 10
	maxAnswer      = 16 << 20
	maxProblem     = 256 << 10
	maxList        = 512 << 20 // a full pool of small layouts with large meta
	// callTimeout bounds a call whose context has no deadline.
	callTimeout = 30 * time.Second
	// shownText is how much of an answer that is no problem an error shows.
	shownText = 120
)

// client sends calls to the servers.
type client struct {
	servers   []*url.URL
	tokenFile string
	http      *http.Client

	mu        sync.Mutex
	preferred int // the server that answered last
}

func newClient(c Config) (*client, error) {
	tlsConfig, err := connurl.TLS(c.CAFile, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	out := &client{servers: c.Servers, tokenFile: c.TokenFile}
	if _, err := out.token(); err != nil {
		return nil, err
	}
	dial := (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	if socket := c.Servers[0]; socket.Scheme == SchemeUnix {
		overTCP := dial
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return overTCP(ctx, "unix", socket.Path) }
	}
	out.http = &http.Client{
		Transport: &http.Transport{
			DialContext: dial, TLSClientConfig: tlsConfig, TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: maxIdlePerHost, IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: maxHeaderBytes,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return out, nil
}

// token reads the bearer token, "" for none.
func (c *client) token() (string, error) {
	if c.tokenFile == "" {
		return "", nil
	}
	f, err := os.Open(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("token_file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	token := strings.TrimSpace(string(b))
	switch {
	case err != nil:
		return "", fmt.Errorf("token_file: %w", err)
	case token == "" || len(b) > maxTokenBytes || strings.ContainsAny(token, "\r\n \t"):
		return "", fmt.Errorf("token_file: %s does not hold one token on one line", c.tokenFile)
	}
	return token, nil
}

// call is one request, that can be repeated as it is.
type call struct {
	method, path string
	query        url.Values
	body         any // nil = none
	answer       any // nil = none is expected
	limit        int64
}

// uncertainError: the call may have been carried out. Whatever a server says
// later about itself does not settle that.
type uncertainError struct{ err error }

func (e *uncertainError) Error() string { return e.err.Error() }
func (e *uncertainError) Unwrap() error { return e.err }

// do asks the servers, beginning with the preferred one, until one answers for
// the store.
func (c *client) do(ctx context.Context, k call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // keeps an earlier deadline
	defer cancel()
	var body []byte
	if k.body != nil {
		var err error
		if body, err = json.Marshal(k.body); err != nil {
			return err
		}
	}
	c.mu.Lock()
	first := c.preferred
	c.mu.Unlock()
	uncertain := false
	var failed error
	for i := range c.servers {
		at := (first + i) % len(c.servers)
		err := c.attempt(ctx, c.servers[at], k, body, len(c.servers)-i)
		if !isServersOwn(err) {
			c.mu.Lock()
			c.preferred = at
			c.mu.Unlock()
			return outward(err)
		}
		var u *uncertainError
		uncertain = uncertain || errors.As(err, &u)
		if err = fmt.Errorf("%s: %w", c.servers[at], err); failed == nil {
			failed = err
		} else {
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		if ctx.Err() != nil {
			break // whoever waits has gone, or waits for nothing more
		}
	}
	if uncertain {
		return failed
	}
	return outward(failed)
}

// outward is a problem as the error of package provider that it stands for.
func outward(err error) error {
	var p *leaseapi.Problem
	if errors.As(err, &p) {
		return p.Err()
	}
	return err
}

// isServersOwn reports whether the error is about one server, so that another
// one may do better.
func isServersOwn(err error) bool {
	var p *leaseapi.Problem
	switch {
	case err == nil:
		return false
	case !errors.As(err, &p):
		return true // no answer, or not a lease server's
	case p.Code == leaseapi.CodeOverloaded || p.Code == leaseapi.CodeUnavailable:
		return true
	case p.Code == "":
		return p.Status >= http.StatusInternalServerError // of a proxy in between
	}
	return false
}

// attempt asks one server, in an equal share of the time that is left.
func (c *client) attempt(ctx context.Context, server *url.URL, k call, body []byte, serversLeft int) error {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(serversLeft))
	defer cancel()
	req, err := c.request(ctx, server, k, body)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return transportError(err)
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return problemOf(res)
	}
	if k.answer == nil {
		return nil
	}
	if err := readJSON(res, k.limit, k.answer); err != nil {
		return &uncertainError{err}
	}
	return nil
}

func (c *client) request(ctx context.Context, server *url.URL, k call, body []byte) (*http.Request, error) {
	to := *server
	if server.Scheme == SchemeUnix {
		to = url.URL{Scheme: "http", Host: "localhost"}
	}
	to.Path += k.path
	to.RawQuery = k.query.Encode()
	req, err := http.NewRequestWithContext(ctx, k.method, to.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != nil {
		req.Header.Set("Content-Type", leaseapi.ContentType)
	}
	req.Header.Set("Accept", leaseapi.ContentType+", "+leaseapi.ProblemType)
	// An empty list is not sent. It tells the transport that the request may be
	// repeated when the server has closed the idle connection it was sent on.
	req.Header["Idempotency-Key"] = []string{}
	return req, nil
}

// transportError drops the URL, which the caller names, and says whether the
// server can have seen the request.
func transportError(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return err
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return err
	}
	return &uncertainError{err}
}

// readJSON reads an answer of at most limit bytes.
func readJSON(res *http.Response, limit int64, into any) error {
	if media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || media != leaseapi.ContentType {
		return fmt.Errorf("the answer is %q and not JSON: is this a lease server?", shorten(res.Header.Get("Content-Type")))
	}
	body := &io.LimitedReader{R: res.Body, N: limit + 1}
	decoder := json.NewDecoder(body)
	if err := decoder.Decode(into); err != nil {
		if body.N <= 0 {
			return fmt.Errorf("the answer is larger than %d bytes", limit)
		}
		return fmt.Errorf("the answer is malformed: %w", err)
	}
	// What is left must be nothing, and reading it lets the connection be reused.
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the answer is malformed: something follows the JSON")
	}
	return nil
}

// problemOf is the answer of a server that did not do what it was asked.
func problemOf(res *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	if err != nil {
		return &uncertainError{err}
	}
	p := &leaseapi.Problem{}
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if media != leaseapi.ProblemType || json.Unmarshal(body, p) != nil || p.Code == "" {
		p = &leaseapi.Problem{Detail: fmt.Sprintf("HTTP %s: %s", res.Status, shorten(strings.TrimSpace(string(body))))}
		if to := res.Header.Get("Location"); to != "" && res.StatusCode < 400 {
			p.Detail = fmt.Sprintf("HTTP %s: redirects are not followed, since they would carry the credential elsewhere", res.Status)
		}
	}
	p.Status = res.StatusCode
	if p.RetryAfterMS <= 0 {
		if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
			p.RetryAfterMS = int64(min(s, int(time.Hour/time.Second))) * 1000
		}
	}
	switch {
	case p.Code == "" && res.StatusCode == http.StatusTooManyRequests:
		p.Code = leaseapi.CodeRateLimited // of a proxy in between
	case p.Code == "" && res.StatusCode >= http.StatusInternalServerError, p.Code == leaseapi.CodeUnavailable:
		return &uncertainError{p}
	}
	return p
}

// shorten keeps what a stranger answered from filling a log.
func shorten(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > shownText {
		return strings.ToValidUTF8(s[:shownText], "") + "..."
	}
	return s
}
