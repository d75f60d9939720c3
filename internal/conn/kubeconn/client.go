package kubeconn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/lazy"
)

// Limits of requests and answers.
const (
	// callTimeout bounds a call without an earlier deadline.
	callTimeout = 30 * time.Second
	maxAnswer   = 64 << 20
	// pageSize is how many objects a page of a list has.
	pageSize = 500
)

// ErrClosed says that the client was closed, before or during the call.
var ErrClosed = errors.New("the client of the Kubernetes API is closed")

// Client reads and writes the Lease objects of one namespace. It is safe for concurrent use.
type Client struct {
	cfg  Config
	life context.Context // done when the client is closed
	end  context.CancelCauseFunc

	// server is found in a goroutine of its own: the disk that its files are on may hang.
	server *lazy.Value[*server]

	mu    sync.Mutex
	until time.Time    // the server has asked for no request before
	asked *StatusError // with what
}

// server is where the requests go.
type server struct {
	url       *url.URL
	namespace string
	http      *http.Client
}

// New returns a client. It does no I/O: the files of the configuration are read at the first call.
func New(cfg Config) *Client {
	if cfg.NowMS == nil {
		cfg.NowMS = func() int64 { return time.Now().UnixMilli() }
	}
	c := &Client{cfg: cfg}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.server = lazy.New("the configuration of the Kubernetes API's client", func(context.Context) (*server, error) { return cfg.server() }, (*server).close)
	return c
}

// bounded is the context of one call.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithTimeout(ctx, callTimeout)
	stop := context.AfterFunc(c.life, cancel)
	return inner, func() {
		stop()
		cancel()
	}
}

// find reads the files of the configuration, unless an earlier call has. It does not connect.
func (c *Client) find(ctx context.Context) (*server, error) {
	inner, cancel := c.bounded(ctx)
	defer cancel()
	found, err := c.server.Get(inner)
	if err != nil && c.life.Err() != nil && ctx.Err() == nil {
		err = ErrClosed
	}
	return found, err
}

// server reads the files. It does not connect.
func (c Config) server() (*server, error) {
	config, namespace, err := c.load()
	if err != nil {
		return nil, err
	}
	config.UserAgent = "kazahana"
	if file := config.BearerTokenFile; file != "" {
		// As client-go does by itself, the file is read once a minute; but here also after
		// an answer of 401.
		config.BearerToken, config.BearerTokenFile = "", ""
		config.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(file)))
	}
	address, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("the address of the API server: %w", err)
	}
	carrier, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("the connection to the API server: %w", err)
	}
	return &server{address, namespace, &http.Client{
		Transport:     carrier,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close ends the calls under way, and every later one at once.
func (c *Client) Close() error {
	c.end(ErrClosed)
	return c.server.Close()
}

func (s *server) close() error {
	s.http.CloseIdleConnections()
	return nil
}

// Get reads an object by a quorum.
func (c *Client) Get(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	var out coordinationv1.Lease
	return &out, c.do(ctx, call{verb: "get", method: http.MethodGet, name: name, answer: &out})
}

// Create makes an object. IsConflict says that there is one of that name.
func (c *Client) Create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	var out coordinationv1.Lease
	return &out, c.do(ctx, call{verb: "create", method: http.MethodPost, body: body(l), answer: &out})
}

// Update replaces the object, which has the uid and the resourceVersion that were read:
// without a uid, an update would make a deleted object anew. IsConflict says that it is
// another one by now.
func (c *Client) Update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if l.UID == "" || l.ResourceVersion == "" {
		panic("kubeconn: an update without uid or resourceVersion")
	}
	var out coordinationv1.Lease
	return &out, c.do(ctx, call{verb: "update", method: http.MethodPut, name: l.Name, body: body(l), answer: &out})
}

// body is the object as the server takes it. A new one is in the namespace of its path.
func body(l *coordinationv1.Lease) *coordinationv1.Lease {
	out := *l
	out.TypeMeta = metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"}
	out.ManagedFields = nil
	return &out
}

// ListOptions says what to list.
type ListOptions struct {
	Selector string // of labels; "" is all
	// Cached allows an answer from the server's cache, of any age: it costs the store
	// nothing. Without it, the list holds every write that has ended before.
	Cached bool
}

// List lists objects.
func (c *Client) List(ctx context.Context, o ListOptions) ([]coordinationv1.Lease, error) {
	var all []coordinationv1.Lease
	q := url.Values{"limit": {fmt.Sprint(pageSize)}}
	if o.Selector != "" {
		q.Set("labelSelector", o.Selector)
	}
	if o.Cached {
		q.Set("resourceVersion", "0")
	}
	for {
		var page coordinationv1.LeaseList
		err := c.do(ctx, call{verb: "list", method: http.MethodGet, query: q, answer: &page})
		if is(err, http.StatusGone) && q.Has("continue") { // the list took longer than the server keeps its state
			all = nil
			q.Del("continue")
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Continue == "" {
			return all, nil
		}
		q.Del("resourceVersion") // the token has it
		q.Set("continue", page.Continue)
	}
}

// CheckRights asks the server whether the caller has every right on the leases of the
// namespace that this package uses. Its error names the missing rights. No right is
// needed for the question.
func (c *Client) CheckRights(ctx context.Context) error {
	s, err := c.find(ctx)
	if err != nil {
		return err
	}
	var missing []string
	for _, verb := range []string{"get", "list", "create", "update"} {
		allowed, err := c.allowed(ctx, s.namespace, verb)
		if err != nil {
			return err
		}
		if !allowed {
			missing = append(missing, verb)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the caller may not %s leases in namespace %q; the missing rule of the Role is %s", strings.Join(missing, ", "), s.namespace, rule(missing...))
}

// review is a SelfSubjectAccessReview. The types of k8s.io/api are a quarter of a megabyte.
type review struct {
	metav1.TypeMeta
	Spec struct {
		ResourceAttributes struct {
			Namespace string `json:"namespace"`
			Verb      string `json:"verb"`
			Group     string `json:"group"`
			Resource  string `json:"resource"`
		} `json:"resourceAttributes"`
	} `json:"spec"`
	Status struct {
		Allowed bool `json:"allowed"`
	} `json:"status"`
}

func (c *Client) allowed(ctx context.Context, namespace, verb string) (bool, error) {
	var asked, out review
	asked.TypeMeta = metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
	a := &asked.Spec.ResourceAttributes
	a.Namespace, a.Verb, a.Group, a.Resource = namespace, verb, coordinationv1.GroupName, "leases"
	err := c.do(ctx, call{
		verb: "create", method: http.MethodPost, path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		body: asked, answer: &out,
	})
	return out.Status.Allowed, err
}

// call is one request.
type call struct {
	verb, method string
	path         string // "": that of leases
	name         string // of an object; "": all
	query        url.Values
	body, answer any
}

// to is where the call goes.
func (s *server) to(k call) string {
	path := k.path
	if path == "" {
		path = "/apis/coordination.k8s.io/v1/namespaces/" + s.namespace + "/leases"
	}
	if k.name != "" {
		path += "/" + k.name
	}
	to := *s.url
	to.Path, to.RawQuery = strings.TrimRight(to.Path, "/")+path, k.query.Encode()
	return to.String()
}

// do sends the call. Its error wraps connurl.ErrNotSent if no byte of the call was sent.
func (c *Client) do(ctx context.Context, k call) error {
	if c.life.Err() != nil {
		return connurl.NotSent(ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return connurl.NotSent(err)
	}
	if err := c.patience(); err != nil {
		return connurl.NotSent(err)
	}
	s, err := c.find(ctx)
	if err != nil {
		return connurl.NotSent(err)
	}
	inner, cancel := c.bounded(ctx)
	defer cancel()
	var body []byte
	if k.body != nil {
		if body, err = json.Marshal(k.body); err != nil {
			return connurl.NotSent(err)
		}
	}
	sent, err := c.attempt(inner, s, k, body)
	if is(err, http.StatusUnauthorized) { // the token may have been replaced: it is read again
		_, err = c.attempt(inner, s, k, body)
	}
	switch {
	case err != nil && c.life.Err() != nil && ctx.Err() == nil:
		err = ErrClosed
	case err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		err = fmt.Errorf("%w (%w)", err, ctx.Err())
	}
	if err != nil && !sent {
		return connurl.NotSent(err)
	}
	return err
}

// patience is the refusal while the server has asked for no requests.
func (c *Client) patience() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := time.Until(c.until)
	if left <= 0 {
		return nil
	}
	again := *c.asked
	again.RetryAfter = left
	return &again
}

// attempt sends the call once. It reports whether a byte of it may have been sent.
func (c *Client) attempt(ctx context.Context, s *server, k call, body []byte) (sent bool, err error) {
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := http.NewRequestWithContext(traced, k.method, s.to(k), bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	sentMS := c.cfg.NowMS()
	res, err := s.http.Do(req)
	if err != nil {
		return connected.Load(), s.explain(err)
	}
	defer res.Body.Close()
	c.note(sentMS, res)
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return true, c.refusal(statusOf(res, k.verb, s.namespace))
	}
	limited := &io.LimitedReader{R: res.Body, N: maxAnswer + 1}
	err = json.NewDecoder(limited).Decode(k.answer)
	if err != nil && limited.N <= 0 {
		err = fmt.Errorf("it has more than %d bytes", maxAnswer)
	}
	if err != nil {
		return true, fmt.Errorf("the answer of the API server: %w", err)
	}
	_, _ = io.Copy(io.Discard, limited) // the connection is used again
	return true, nil
}

// note tells of the server's time.
func (c *Client) note(sentMS int64, res *http.Response) {
	date, err := http.ParseTime(res.Header.Get("Date"))
	if err == nil && c.cfg.Answered != nil {
		c.cfg.Answered(sentMS, c.cfg.NowMS(), date.UnixMilli())
	}
}

// refusal notes how long the server asks to wait.
func (c *Client) refusal(e *StatusError) *StatusError {
	if e.RetryAfter > 0 && (e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.until, c.asked = time.Now().Add(e.RetryAfter), e
	}
	return e
}

// explain is an error of the network, without the URL and with advice.
func (s *server) explain(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return connurl.Explain("the API server "+s.url.Host, connurl.Hint(err), err)
}
