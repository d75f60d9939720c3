package leaseserver

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/idletest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestLimiter(t *testing.T) {
	now := time.Unix(1, 0)
	l := newLimiter(10, 2)
	wait := func(client string, want time.Duration) {
		t.Helper()
		if got := l.wait(client, now); got != want {
			t.Errorf("%s waits %v, want %v", client, got, want)
		}
	}
	wait("a", 0)
	wait("a", 0)
	wait("a", 100*time.Millisecond)
	wait("a", 100*time.Millisecond) // a refusal costs nothing
	wait("b", 0)
	now = now.Add(100 * time.Millisecond)
	wait("a", 0)
	wait("a", 100*time.Millisecond)
	if got := newLimiter(0, 1).wait("a", now); got != 0 {
		t.Errorf("without a limit one waits %v", got)
	}
	// The table stays within its bound: quiet clients go, busy ones share.
	for i := range maxClients + 10 {
		l.wait(fmt.Sprint("client ", i), now)
	}
	if n := len(l.clients); n > maxClients {
		t.Errorf("%d clients are remembered", n)
	}
	wait("one too many", 100*time.Millisecond)
	now = now.Add(time.Hour)
	wait("one more", 0)
	if n := len(l.clients); n != 1 {
		t.Errorf("%d clients are remembered after an hour", n)
	}
}

// An acquire costs as many requests as it takes leases, and waits for all of them. No client
// waits for more than a full bucket.
func TestLimiterCountsLeases(t *testing.T) {
	now := time.Unix(1, 0)
	l := newLimiter(10, 5)
	acquire := func(leases int, want time.Duration) {
		t.Helper()
		if got := l.wait("a", now); got != 0 {
			t.Errorf("the request waits %v", got)
		}
		if got := l.waitFor(leases, "a", now); got != want {
			t.Errorf("%d leases wait %v, want %v", leases, got, want)
		}
	}
	acquire(4, 0) // of 5
	now = now.Add(100 * time.Millisecond)
	acquire(3, 200*time.Millisecond) // of 2, of which the refusal costs one
	now = now.Add(200 * time.Millisecond)
	acquire(3, 0)
	now = now.Add(time.Hour)
	acquire(1000, 0)
	if got := l.wait("a", now); got != 100*time.Millisecond {
		t.Errorf("after a whole bucket the next request waits %v", got)
	}
	if got := newLimiter(0, 1).waitFor(9, "a", now); got != 0 {
		t.Errorf("without a limit an acquire waits %v", got)
	}
}

func TestClientKey(t *testing.T) {
	a, b := Credential{Tenant: "t", Owner: "a"}, Credential{Tenant: "t", Owner: "b"}
	for _, test := range []struct {
		x, y string
		same bool
	}{
		{clientKey(a, "10.0.0.1:1"), clientKey(a, "10.0.0.1:2"), true},
		{clientKey(a, "10.0.0.1:1"), clientKey(a, "[::ffff:10.0.0.1]:2"), true},
		{clientKey(a, "10.0.0.1:1"), clientKey(a, "10.0.0.2:1"), false},
		{clientKey(a, "10.0.0.1:1"), clientKey(b, "10.0.0.1:1"), false},
		{clientKey(a, "[2001:db8::1]:1"), clientKey(a, "[2001:db8::ffff:2]:1"), true},
		{clientKey(a, "[2001:db8::1]:1"), clientKey(a, "[2001:db8:0:1::1]:1"), false},
		{clientKey(a, "@"), clientKey(a, "@"), true},
	} {
		if (test.x == test.y) != test.same {
			t.Errorf("%q and %q", test.x, test.y)
		}
	}
}

// slow is a provider with acquires that wait to be let go.
type slow struct {
	provider.Provider
	entered chan struct{}
	letGo   chan struct{}
}

func (s *slow) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	s.entered <- struct{}{}
	select {
	case <-s.letGo:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.Provider.Acquire(ctx, req)
}

func slowRig(t *testing.T, change func(*rig)) (*rig, *slow) {
	s := &slow{entered: make(chan struct{}, 100), letGo: make(chan struct{})}
	return newRig(t, func(g *rig) {
		s.Provider, g.options.Provider = g.memory(), s
		if change != nil {
			change(g)
		}
	}), s
}

func TestProviderTimeout(t *testing.T) {
	g, _ := slowRig(t, func(g *rig) { g.options.ProviderTimeout = time.Millisecond })
	g.want("a provider that hangs", g.send("POST", "/lease", "", ""), problem.Unavailable)
	if m := g.send("GET", "/metrics", "", "").body; !strings.Contains(m, `kazahana_server_acquires_total{result="timeout",service="default"} 1`) {
		t.Error("the timeout is not counted")
	}
}

// listening runs the rig's server on a listener until the test's end.
func (g *rig) listening(o Listening) (address string) {
	g.t.Helper()
	address, _, _ = g.serving(o)
	return address
}

// serving is listening for tests that stop the server. done is closed when it has ended.
func (g *rig) serving(o Listening) (address string, stop context.CancelFunc, done <-chan struct{}) {
	g.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(g.t, err)
	o.MaxConnections, o.DrainTimeout = cmp.Or(o.MaxConnections, 100), cmp.Or(o.DrainTimeout, long)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.server.Serve(ctx, l, o); err != nil {
			g.t.Error(err)
		}
	}()
	g.t.Cleanup(func() {
		stop()
		<-ended
	})
	return l.Addr().String(), stop, ended
}

// dial connects, and gives up when the test has taken too long.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	must.Succeed(t, conn.SetDeadline(time.Now().Add(long)))
	return conn
}

// A handshake of TLS that does not come is cut off.
func TestSilentHandshakes(t *testing.T) {
	g := newRig(t, nil)
	g.server.phases = phases{header: 50 * time.Millisecond, read: long, write: long, idle: long}
	cert, key := certtest.New(t, "authority").Issue("server")
	files, err := NewTLS(TLSFiles{Cert: cert, Key: key}, zap.NewNop())
	must.Succeed(t, err)
	address := g.listening(Listening{TLS: ServerTLS(files)})
	for _, sent := range []string{"", "\x16\x03\x01\x01\x00"} {
		conn := dial(t, address)
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after %q the connection stays open", sent)
		}
	}
}

// A connection that sends nothing, half a head, or half a body, is cut off.
func TestSlowPeers(t *testing.T) {
	g := newRig(t, nil)
	g.server.phases = phases{header: 50 * time.Millisecond, read: 100 * time.Millisecond, write: long, idle: 50 * time.Millisecond}
	address := g.listening(Listening{})
	for name, sent := range map[string]string{
		"nothing": "", "half a head": "POST /lease HTTP/1.1\r\nHost: x\r\nX-A: ",
		"half a body": "POST /lease HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{",
		"idle":        "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		conn := dial(t, address)
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays open", name)
		}
	}
	if r := g.send("GET", "/leases", "", ""); !strings.Contains(r.body, `"records":[]`) {
		t.Errorf("half a request took a lease: %s", r.body)
	}
}

func TestLargeHead(t *testing.T) {
	g := newRig(t, nil)
	address := g.listening(Listening{})
	conn := dial(t, address)
	// The server may close before it has read all.
	_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "+strings.Repeat("a", 2*maxHeaderBytes)+"\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", res.StatusCode)
	}
}

// ask sends a request on a connection, and reads the answer.
func ask(t *testing.T, conn net.Conn, head string) (*http.Response, error) {
	t.Helper()
	if _, err := io.WriteString(conn, head+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+tokenHost+"\r\n\r\n"); err != nil {
		return nil, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
	}
	return res, err
}

// Connections that do nothing keep their places for a moment only.
func TestIdleConnectionsEnd(t *testing.T) {
	idletest.Test(t, func(t *testing.T, ctx context.Context, l net.Listener) error {
		return newRig(t, nil).server.Serve(ctx, l, Listening{MaxConnections: 4000, DrainTimeout: time.Second})
	})
}

// A refusal because a limit is reached is seen by its key.
func TestRefusalsAreSeen(t *testing.T) {
	for limit, test := range map[string]struct {
		change  func(*rig)
		refused problem.Code
	}{
		"max_in_flight": {func(g *rig) { g.options.MaxInFlight = 0 }, problem.Overloaded},
		"rate_limit":    {func(g *rig) { g.options.RateLimit = 1e-9 }, problem.RateLimited},
	} {
		t.Run(limit, func(t *testing.T) {
			g := newRig(t, test.change)
			if limit == "rate_limit" {
				g.send("GET", "/leases", "", "")
			}
			g.want(limit, g.send("GET", "/leases", "", ""), test.refused)
			if seen := g.options.Refusals.Recent(); len(seen) != 1 || seen[0].Limit != limit || seen[0].Refused != 1 {
				t.Errorf("seen %+v", seen)
			}
			if got := g.send("GET", "/readyz", "", ""); got.body != "ok\noverloaded: "+limit+" is reached\n" {
				t.Errorf("/readyz says %q", got.body)
			}
			page := httptest.NewRecorder()
			if err := g.server.overview(page, httptest.NewRequest("GET", "/status.json", nil), Credential{}); err != nil ||
				!strings.Contains(page.Body.String(), `"limit":"`+limit+`"`) {
				t.Errorf("the page has %s, %v", page.Body, err)
			}
			families, err := g.options.Metrics.Registry.Gather()
			must.Succeed(t, err)
			for _, f := range families {
				for _, m := range f.GetMetric() {
					if f.GetName() == "kazahana_server_refusals_total" && (m.GetCounter().GetValue() == 1) != (m.GetLabel()[0].GetValue() == limit) {
						t.Errorf("metric %v", m)
					}
				}
			}
		})
	}
}

// An acquire costs as many requests as it takes leases, with any answer.
func TestAcquiresCostTheirLeases(t *testing.T) {
	g := newRig(t, func(g *rig) { g.options.RateLimit, g.options.RateBurst = 1e-9, 10 })
	var pauses atomic.Int64
	g.server.after = func(time.Duration) <-chan time.Time {
		pauses.Add(1)
		over := make(chan time.Time, 1)
		over <- time.Time{}
		return over
	}
	acquire := func(leases int) reply {
		return g.send("POST", "/lease", "", fmt.Sprintf(`{"throughputPerMs": %d}`, leases*256))
	}
	if r := acquire(7); r.status != 200 || strings.Count(r.body, `"secret"`) != 7 {
		t.Fatalf("%+v", r)
	}
	g.want("4 of 3", acquire(4), problem.RateLimited) // it costs a request
	if r := acquire(2); r.status != 200 {
		t.Errorf("2 of 2: %+v", r)
	}
	g.want("a request", g.send("GET", "/leases", "", ""), problem.RateLimited)
	if n := pauses.Load(); n != 2 {
		t.Errorf("%d refusals have waited", n)
	}
}

// A client that asks too often waits for the refusal, while the server does not stop.
func TestRefusalsByRateWait(t *testing.T) {
	g := newRig(t, func(g *rig) { g.options.RateLimit, g.options.RateBurst = 1e-9, 1 })
	waits, over := make(chan time.Duration, 1), make(chan time.Time)
	g.server.after = func(d time.Duration) <-chan time.Time { waits <- d; return over }
	g.send("GET", "/leases", "", "")
	for _, end := range []func(){func() { over <- time.Time{} }, g.server.leave} {
		answered := make(chan reply, 1)
		go func() { answered <- g.send("GET", "/leases", "", "") }()
		select {
		case d := <-waits:
			if d != refusalPause {
				t.Errorf("it waits for %v", d)
			}
		case r := <-answered:
			t.Fatalf("it has not waited: %+v", r)
		}
		end()
		g.want("the second", <-answered, problem.RateLimited)
	}
}

// A wrong credential costs a connection, and an address has its part of them.
func TestGuessesCostConnections(t *testing.T) {
	g := newRig(t, func(g *rig) { g.tokens(testTokens) })
	address := g.listening(Listening{PerAddress: 1})
	guess := dial(t, address)
	_, _ = io.WriteString(guess, "GET /leases HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(guess), nil)
	if err != nil || res.StatusCode != 401 || !res.Close {
		t.Fatal(res, err)
	}
	if _, err := io.ReadAll(guess); err != nil {
		t.Errorf("it stays open: %v", err)
	}
	await.Eventually(g.t, "the place is given back", func() bool {
		_, err := ask(t, dial(t, address), "GET /leases")
		return err == nil
	})
	if _, err := ask(t, dial(t, address), "GET /healthz"); err == nil {
		t.Error("a second connection of the address is served")
	}
	if all := g.options.Refusals.Recent(); len(all) != 1 || all[0].Limit != "max_connections_per_address" {
		t.Errorf("what is refused is not seen: %v", all)
	}
}

// Above the limit of all a connection is closed, and that is seen.
func TestConnectionsAboveTheLimitAreClosed(t *testing.T) {
	g := newRig(t, nil)
	address := g.listening(Listening{MaxConnections: 1})
	first := dial(t, address)
	if _, err := ask(t, first, "GET /leases"); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, dial(t, address), "GET /leases"); err == nil {
		t.Error("one more is served")
	}
	if _, err := ask(t, first, "GET /leases"); err != nil {
		t.Errorf("the first one had to go: %v", err)
	}
	if all := g.options.Refusals.Recent(); len(all) != 1 || all[0].Limit != "max_connections" {
		t.Errorf("what is refused is not seen: %v", all)
	}
}

// A stop fails readiness first, still serves for the delay, then answers the requests
// under way and ends.
func TestDrain(t *testing.T) {
	g, s := slowRig(t, nil)
	over := make(chan time.Time)
	g.server.after = func(time.Duration) <-chan time.Time { return over }
	address, stop, done := g.serving(Listening{})
	get := func(path string) (*http.Response, error) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: long}
		res, err := client.Get("http://" + address + path)
		if err == nil {
			_ = res.Body.Close()
		}
		return res, err
	}
	answered := make(chan *http.Response, 1)
	go func() {
		res, err := g.client().Post("http://"+address+"/lease", "", nil)
		if err != nil {
			t.Error(err)
		} else {
			_ = res.Body.Close()
		}
		answered <- res
	}()
	<-s.entered
	if res, err := get("/readyz"); err != nil || res.StatusCode != 200 {
		t.Fatal("before the stop:", res, err)
	}
	stop()
	await.Eventually(g.t, "the server stops", g.server.stopping.Load)
	if res, err := get("/readyz"); err != nil || res.StatusCode != 503 {
		t.Error("readiness while stopping:", res, err)
	}
	await.Eventually(g.t, "a connection is closed after its answer", func() bool {
		res, err := get("/healthz")
		return err == nil && res.StatusCode == 200 && res.Close
	})
	close(over)
	await.Eventually(g.t, "the listener is closed", func() bool { _, err := get("/healthz"); return err != nil })
	select {
	case <-done:
		t.Error("Serve returned while a request was under way")
	default:
	}
	close(s.letGo)
	if res := <-answered; res == nil || res.StatusCode != 200 {
		t.Errorf("the request under way: %v", res)
	}
	<-done
}

// A request that takes longer than the drain timeout is cut off.
func TestDrainTimeout(t *testing.T) {
	g, s := slowRig(t, nil)
	address, stop, done := g.serving(Listening{DrainTimeout: 10 * time.Millisecond})
	failed := make(chan error, 1)
	go func() {
		res, err := g.client().Post("http://"+address+"/lease", "", nil)
		if err == nil {
			_ = res.Body.Close()
		}
		failed <- err
	}()
	<-s.entered
	stop()
	<-done
	if <-failed == nil {
		t.Error("the request was answered")
	}
}

// A pool that fills up is seen: in the log, at /readyz and on the page.
func TestPoolThatFillsUpIsSeen(t *testing.T) {
	lines, logged := observer.New(zap.WarnLevel)
	g := newRig(t, func(g *rig) {
		g.services.Default.IDs = provider.IDRange{Low: 0, End: 20}
		g.options.Log = zap.New(lines)
	})
	g.server.stats.fresh = 0
	steps := []struct {
		leases                  int
		fullness, readyz, tells string
	}{
		{18, "roomy", "ok\n", ""}, {1, "nearly_full", "ok\na pool is nearly full\n", "a pool is nearly full"},
		{1, "full", "ok\na pool is full\n", "a pool is full: acquires are refused"},
	}
	for _, step := range steps {
		g.clock.Add(2 * tellPause.Milliseconds())
		g.acquire("", fmt.Sprintf(`{"throughputPerMs":%d}`, step.leases*256))
		if got := answered[Overview](g, "/status.json").Pools[0].Fullness; got != step.fullness {
			t.Errorf("the page has %q, want %q", got, step.fullness)
		}
		if got := g.send("GET", "/readyz", "", "").body; got != step.readyz {
			t.Errorf("/readyz: %q", got)
		}
		all := logged.TakeAll()
		if (len(all) == 1) != (step.tells != "") || len(all) > 1 || step.tells != "" && (all[0].Message != step.tells || all[0].ContextMap()["pool"] != "default") {
			t.Errorf("the log has %v, want %q", all, step.tells)
		}
	}
	// A refused acquire tells at once, also where nothing looks at the pool.
	g.server.note(func(b *stats) { b.pools = map[string]*poolStats{} })
	g.send("POST", "/lease", "", "")
	if all := logged.TakeAll(); len(all) != 1 || all[0].Message != steps[2].tells {
		t.Errorf("after a refused acquire the log has %v", all)
	}
}
