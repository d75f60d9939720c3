package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/operator/limitlistener"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/idletest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) { await.Main(m) }

// hang is when a test gives up on what should happen at once.
const hang = await.Patience

// site is a handler that is served on a Unix socket.
type site struct {
	t      *testing.T
	count  *refusals.Counter
	client *http.Client
	stop   func() error
}

func serve(t *testing.T, o Options) *site {
	t.Helper()
	count := refusals.New(zap.NewNop(), func(string) {})
	network, address := SplitAddress("unix:" + filepath.Join(ring.Dir(t), "admin"))
	l, err := net.Listen(network, address)
	must.Succeed(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, Handler(o), count) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	s := &site{t: t, count: count, client: &http.Client{Transport: transport, Timeout: hang}}
	s.stop = func() error {
		cancel()
		select {
		case err := <-done:
			done <- err
			return err
		case <-time.After(hang):
			return errors.New("Serve does not return")
		}
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
	})
	return s
}

// A page of another site reads nothing, but a link to this one may be followed.
func TestOtherSites(t *testing.T) {
	s := serve(t, Options{Registry: prometheus.NewRegistry(), Ready: func() error { return nil }, Pprof: true})
	for _, test := range []struct {
		site, mode string
		want       int
	}{{"cross-site", "cors", 403}, {"cross-site", "no-cors", 403}, {"cross-site", "navigate", 200}, {"same-origin", "cors", 200}, {"none", "navigate", 200}} {
		for _, path := range []string{"/metrics", "/healthz", "/debug/pprof/"} {
			req, err := http.NewRequest("GET", "http://kazahanad"+path, nil)
			must.Succeed(t, err)
			req.Header.Set("Sec-Fetch-Site", test.site)
			req.Header.Set("Sec-Fetch-Mode", test.mode)
			res, err := s.client.Do(req)
			must.Succeed(t, err)
			_ = res.Body.Close()
			if res.StatusCode != test.want {
				t.Errorf("%s %s %s: %d", path, test.site, test.mode, res.StatusCode)
			}
		}
	}
}

// get returns the status, the body and its type.
func (s *site) get(method, path string) (status int, body, kind string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://kazahanad"+path, nil)
	must.Succeed(s.t, err)
	resp, err := s.client.Do(req)
	must.Succeed(s.t, err)
	return resp.StatusCode, read(s.t, resp), resp.Header.Get("Content-Type")
}

func TestHealth(t *testing.T) {
	var ready atomic.Pointer[error]
	s := serve(t, Options{Registry: prometheus.NewRegistry(), Ready: func() error {
		if err := ready.Load(); err != nil {
			return *err
		}
		return nil
	}})
	for _, path := range []string{"/healthz", "/readyz"} {
		for _, method := range []string{"GET", "HEAD"} {
			if status, body, _ := s.get(method, path); status != 200 || method == "GET" && body != "ok\n" {
				t.Errorf("%s %s: %d %q", method, path, status, body)
			}
		}
		if status, _, _ := s.get("POST", path); status != 405 {
			t.Errorf("POST %s: %d", path, status)
		}
	}
	why := errors.New("service orders cannot issue IDs: no lease")
	ready.Store(&why)
	if status, body, _ := s.get("GET", "/readyz"); status != 503 || body != why.Error()+"\n" {
		t.Errorf("not ready: %d %q", status, body)
	}
	if status, _, _ := s.get("GET", "/healthz"); status != 200 {
		t.Errorf("a process that runs is not healthy: %d", status)
	}
	ready.Store(nil)
	if status, _, _ := s.get("GET", "/readyz"); status != 200 {
		t.Errorf("ready again: %d", status)
	}
}

// Profiles can slow a process down and show its insides: only where wanted.
func TestPprof(t *testing.T) {
	paths := []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/debug/pprof/goroutine?debug=1", "/debug/pprof/heap"}
	ready := func() error { return nil }
	without := serve(t, Options{Registry: prometheus.NewRegistry(), Ready: ready})
	with := serve(t, Options{Registry: prometheus.NewRegistry(), Ready: ready, Pprof: true})
	for _, path := range append(paths, "/debug/pprof/profile", "/debug/pprof/trace", "/debug/pprof", "/debug/") {
		if status, _, _ := without.get("GET", path); status != 404 {
			t.Errorf("without: %s: %d", path, status)
		}
	}
	for _, path := range paths {
		if status, body, _ := with.get("GET", path); status != 200 || body == "" {
			t.Errorf("with: %s: %d %q", path, status, body)
		}
	}
}

// Few connections are open at once: those above the limit are closed, and said.
func TestConnectionsAreFew(t *testing.T) {
	s := serve(t, Options{Registry: prometheus.NewRegistry(), Ready: func() error { return nil }})
	dial := s.client.Transport.(*http.Transport).DialContext
	most := limitlistener.Beside(MaxConnections)
	var all []net.Conn
	for range most {
		c, err := dial(t.Context(), "", "")
		must.Succeed(t, err)
		defer c.Close()
		all = append(all, c)
	}
	_, err := s.client.Get("http://kazahanad/healthz")
	if err == nil {
		t.Error("one more is served")
	}
	if got := s.count.Recent(); len(got) != 1 || got[0].Limit != refusals.AdminConnections {
		t.Errorf("counted are %+v", got)
	}
	for _, c := range all {
		_ = c.Close()
	}
	await.Success(t, "a newcomer is answered", func() error {
		res, err := s.client.Get("http://kazahanad/healthz")
		if err == nil {
			err = res.Body.Close()
		}
		return err
	})
}

// Connections that do nothing keep their places for a moment only.
func TestIdleConnectionsEnd(t *testing.T) {
	idletest.Test(t, func(_ *testing.T, ctx context.Context, l net.Listener) error {
		return Serve(ctx, l, Handler(Options{Registry: prometheus.NewRegistry()}), nil)
	})
}

func TestServeFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	_ = l.Close()
	if err := Serve(t.Context(), l, http.NotFoundHandler(), nil); !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), "admin listener") {
		t.Errorf("%v", err)
	}
}

// A liveness probe gets what has stopped, and has its answer in time.
func TestHealthz(t *testing.T) {
	stopped := errors.New("the accept loop has stopped working")
	for _, err := range []error{nil, stopped} {
		s := serve(t, Options{Registry: prometheus.NewRegistry(), Ready: func() error { return nil }, Alive: func(ctx context.Context) error {
			if _, limited := ctx.Deadline(); !limited {
				t.Error("it may take forever")
			}
			return err
		}})
		code, body, _ := s.get("GET", "/healthz")
		if want := map[bool]int{true: http.StatusOK, false: http.StatusServiceUnavailable}[err == nil]; code != want || err != nil && !strings.Contains(body, err.Error()) {
			t.Errorf("with %v it answers %d %q", err, code, body)
		}
	}
}

// pipes is a listener in memory.
type pipes struct {
	made   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.made:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.closed) }); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// A stop lets answers under way end, but waits for none that takes long.
func TestAnswersEndBeforeAStop(t *testing.T) {
	for takes, whole := range map[time.Duration]bool{stopTimeout / 2: true, 2 * stopTimeout: false} {
		synctest.Test(t, func(t *testing.T) {
			p := &pipes{made: make(chan net.Conn), closed: make(chan struct{})}
			ctx, stop := context.WithCancel(t.Context())
			status := func() any {
				stop()
				time.Sleep(takes)
				return "it is well"
			}
			var served sync.WaitGroup
			served.Go(func() {
				if err := Serve(ctx, p, Handler(Options{Registry: prometheus.NewRegistry(), Status: status}), nil); err != nil {
					t.Error(err)
				}
			})
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				p.made <- far
				return near, nil
			}}}
			began := time.Now()
			var said string
			res, err := client.Get("http://kazahanad" + StatusPath)
			if err == nil {
				said = read(t, res)
			}
			if (said == "\"it is well\"\n") != whole {
				t.Errorf("after %v it has %q, %v", takes, said, err)
			}
			served.Wait()
			if stopped := time.Since(began); stopped > stopTimeout {
				t.Errorf("a stop takes %v", stopped)
			}
			time.Sleep(takes) // of the handler
		})
	}
}

func read(t *testing.T, res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	must.Succeed(t, err)
	return string(text)
}
