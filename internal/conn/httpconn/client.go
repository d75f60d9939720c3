package httpconn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/problem"
)

// Limits of the connections.
const (
	dialTimeout = 5 * time.Second
	// idleTimeout is shorter than a lease server's, so that the client closes unused
	// connections first, and longer than the default verify_interval, so that a daemon keeps
	// its connection.
	idleTimeout = 11 * time.Second
	// maxIdlePerHost is how many connections wait for the next call: as many calls as are
	// often under way make no new ones. There is no limit of all, for a call that waits for a
	// lock must not keep another from renewing one.
	maxIdlePerHost = 64
	maxHeaderBytes = 64 << 10
	maxTokenBytes  = 16 << 10
	// callTimeout bounds a call without a deadline, beside its Patience.
	callTimeout = 30 * time.Second
)

// jsonType is the media type of requests and answers.
const jsonType = "application/json"

// ErrClosed says that the client was closed, before or during the call.
var ErrClosed = errors.New("the client is closed")

// Client sends calls to the servers. It is safe for concurrent use.
type Client struct {
	servers   []*url.URL
	tokenFile string
	http      *http.Client

	life context.Context // done when the client is closed
	end  context.CancelCauseFunc

	mu        sync.Mutex
	preferred int // the server that answered last
}

// New returns a client. It reads the files of the configuration, and does not connect.
func New(c Config) (*Client, error) {
	tlsConfig, err := connurl.TLS(c.CAFile, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	out := &Client{servers: c.Servers, tokenFile: c.TokenFile}
	if _, err := out.token(); err != nil {
		return nil, err
	}
	dial := (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	if socket := c.Servers[0]; socket.Scheme == SchemeUnix {
		overTCP := dial
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return overTCP(ctx, "unix", socket.Path) }
	}
	transport := c.Transport
	if transport == nil {
		transport = &http.Transport{
			DialContext: dial, TLSClientConfig: tlsConfig, TLSHandshakeTimeout: dialTimeout,
			MaxIdleConnsPerHost: maxIdlePerHost, IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: maxHeaderBytes,
		}
	}
	out.http = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	out.life, out.end = context.WithCancelCause(context.Background())
	return out, nil
}

// Close ends the calls under way, and every later one at once.
func (c *Client) Close() error {
	c.end(ErrClosed)
	c.http.CloseIdleConnections()
	return nil
}

// token reads the bearer token, "" for none.
func (c *Client) token() (string, error) {
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

// Call is one request.
type Call struct {
	Method string
	Path   string // with foreign parts made by Escape
	Query  url.Values
	Body   any     // nil = none
	Answer any     // nil = none is expected
	Limit  int64   // bytes of the answer
	Server *string // set to the server that answered; may be nil

	// Patience is how long a server may wait on purpose, in addition to the usual time.
	Patience time.Duration
	// Once: do not repeat the call if it may have been carried out.
	Once bool
	// SentOnce: do not repeat the call once a byte of it was sent.
	SentOnce bool
}

// Do asks the servers, beginning with the last server that answered, until one answers
// for the store. The error is ErrClosed, the context's, or the errors of all servers;
// Settled says whether it is an answer. It wraps connurl.ErrNotSent if no byte of the
// request was sent to any server.
func (c *Client) Do(ctx context.Context, k Call) error {
	if c.life.Err() != nil {
		return connurl.NotSent(ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return connurl.NotSent(err)
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(ErrClosed) })()
	sent, err := c.do(inner, k)
	if err != nil && c.life.Err() != nil && ctx.Err() == nil {
		err = ErrClosed
	}
	if !sent {
		return connurl.NotSent(err)
	}
	return err
}

// do also reports whether a byte of the request may have been sent.
func (c *Client) do(ctx context.Context, k Call) (sent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout+k.Patience) // keeps an earlier deadline
	defer cancel()
	var body []byte
	if k.Body != nil {
		if body, err = json.Marshal(k.Body); err != nil {
			return false, err
		}
	}
	c.mu.Lock()
	first := c.preferred
	c.mu.Unlock()
	var failed error
	for i := range c.servers {
		at := (first + i) % len(c.servers)
		sentThere, err := c.attempt(ctx, c.servers[at], k, body, len(c.servers)-i)
		sent = sent || sentThere
		if !isServersOwn(err) {
			c.mu.Lock()
			c.preferred = at
			c.mu.Unlock()
			if k.Server != nil {
				*k.Server = c.servers[at].String()
			}
			if isRequests(err) && errors.As(failed, new(*uncertainError)) {
				// This server refused the request, but an earlier one may have
				// carried it out.
				return sent, fmt.Errorf("%w; %s: %w", failed, c.servers[at], err)
			}
			return sent, err
		}
		mayBeDone := errors.As(err, new(*uncertainError))
		if err = fmt.Errorf("%s: %w", c.servers[at], err); failed == nil {
			failed = err
		} else {
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		if ctx.Err() != nil || k.Once && mayBeDone || k.SentOnce && sent {
			break // the caller has gone, or the client is closed
		}
	}
	return sent, failed
}

// attempt asks one server, in an equal share of the remaining time. It reports whether a
// byte of the request may have been sent: the transport had a connection to write it to.
// The transport repeats a request by itself only if it has not written it, or if do has
// allowed that.
func (c *Client) attempt(ctx context.Context, server *url.URL, k Call, body []byte, serversLeft int) (sent bool, err error) {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, share(time.Until(deadline), k.Patience, serversLeft))
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := c.request(ctx, server, k, body)
	if err != nil {
		return false, err
	}
	res, err := c.http.Do(req)
	if err != nil && !connected.Load() {
		return false, transportError(err)
	}
	if err != nil {
		return true, &uncertainError{transportError(err)}
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return true, problemOf(res)
	}
	if k.Answer == nil && isHTML(res) {
		return true, &uncertainError{&strangeError{"the answer is a page in HTML"}}
	}
	if k.Answer == nil {
		return true, nil
	}
	if err := readJSON(res, k.Limit, k.Answer); err != nil {
		return true, &uncertainError{err}
	}
	return true, nil
}

// share is one server's share of the remaining time. Patience is not divided: a server
// that waits on purpose is not in trouble.
func share(left, patience time.Duration, servers int) time.Duration {
	return max(0, left-patience)/time.Duration(servers) + patience
}

func (c *Client) request(ctx context.Context, server *url.URL, k Call, body []byte) (*http.Request, error) {
	to := *server
	if server.Scheme == SchemeUnix {
		to = url.URL{Scheme: "http", Host: "localhost"}
	}
	if err := addPath(&to, k.Path); err != nil {
		return nil, err
	}
	to.RawQuery = k.Query.Encode()
	req, err := http.NewRequestWithContext(ctx, k.Method, to.String(), bytes.NewReader(body))
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
		req.Header.Set("Content-Type", jsonType)
	}
	req.Header.Set("Accept", jsonType+", "+problem.MediaType)
	addHeader(ctx, req.Header)
	if !k.Once && !k.SentOnce {
		// An empty list is not sent. It allows the transport to repeat the request if
		// the server has closed the idle connection that it was sent on.
		req.Header["Idempotency-Key"] = []string{}
	}
	return req, nil
}

// addPath adds an escaped path to the URL's.
func addPath(u *url.URL, escaped string) error {
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return err
	}
	u.RawPath = u.EscapedPath() + escaped
	u.Path += path
	return nil
}

// Escape makes one path segment of any text. It also escapes "." and "..", which servers
// and proxies would resolve.
func Escape(segment string) string {
	if segment == "." || segment == ".." {
		return strings.ReplaceAll(segment, ".", "%2E")
	}
	return url.PathEscape(segment)
}
