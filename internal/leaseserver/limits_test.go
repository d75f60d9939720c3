package leaseserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/memory"
)

func TestRateLimit(t *testing.T) {
	g := newRig(t, func(g *rig) {
		g.tokens(testTokens)
		g.options.RateLimit, g.options.RateBurst = 0.001, 3 // none comes back during the test
	})
	for range 3 {
		g.acquire(tokenHost, "")
	}
	r := g.send("POST", "/lease", tokenHost, "")
	g.want("beyond the burst", r, problem.RateLimited)
	if r.header.Get("Retry-After") != "60" || r.problem.RetryAfterMS < 60_000 {
		t.Errorf("%+v", r)
	}
	g.acquire(tokenOther, "") // somebody else's bucket is full
	if r := g.send("GET", "/healthz", "", ""); r.status != 200 {
		t.Errorf("health is limited: %+v", r)
	}
}

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

// slow is a provider whose acquires wait to be let go.
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
		p, err := memory.New(memory.NewStore(g.clock.Load), g.services)
		if err != nil {
			t.Fatal(err)
		}
		s.Provider, g.options.Provider = p, s
		if change != nil {
			change(g)
		}
	}), s
}

func TestInFlightLimit(t *testing.T) {
	g, s := slowRig(t, func(g *rig) { g.options.MaxInFlight = 2 })
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { g.acquire("", "") })
		<-s.entered
	}
	r := g.send("POST", "/lease", "", "")
	g.want("a third", r, problem.Overloaded)
	if r.header.Get("Retry-After") != "1" {
		t.Errorf("%+v", r)
	}
	if r := g.send("GET", "/healthz", "", ""); r.status != 200 {
		t.Errorf("health: %+v", r)
	}
	close(s.letGo)
	all.Wait()
	g.acquire("", "")
}

func TestProviderTimeout(t *testing.T) {
	g, _ := slowRig(t, func(g *rig) { g.options.ProviderTimeout = time.Millisecond })
	g.want("a provider that hangs", g.send("POST", "/lease", "", ""), problem.Unavailable)
	if m := g.send("GET", "/metrics", "", "").body; !strings.Contains(m, `kazahana_server_acquires_total{result="timeout",service="default"} 1`) {
		t.Error("the timeout is not counted")
	}
}

// listening runs the rig's server on a listener.
func (g *rig) listening(o Listening) (address string, stop context.CancelFunc, done <-chan error) {
	g.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 100
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.server.Serve(ctx, l, o) }()
	g.t.Cleanup(stop)
	return l.Addr().String(), stop, ended
}

// dial connects, and gives up when the test has taken too long.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(long)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Whoever sends nothing, half a head, or half a body, is cut off.
func TestSlowPeers(t *testing.T) {
	g := newRig(t, nil)
	g.server.phases = phases{header: 50 * time.Millisecond, read: 100 * time.Millisecond, write: long, idle: 50 * time.Millisecond}
	address, stop, done := g.listening(Listening{})
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
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLargeHead(t *testing.T) {
	g := newRig(t, nil)
	address, stop, done := g.listening(Listening{})
	conn := dial(t, address)
	// The server may close before it has read all.
	_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "+strings.Repeat("a", 2*maxHeaderBytes)+"\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", res.StatusCode)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Connections beyond the limit wait until one is free.
func TestConnectionLimit(t *testing.T) {
	g := newRig(t, nil)
	address, stop, done := g.listening(Listening{MaxConnections: 1})
	get := func(conn net.Conn) {
		t.Helper()
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	first, second := dial(t, address), dial(t, address)
	get(first)
	if res, err := http.ReadResponse(bufio.NewReader(first), nil); err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	get(second)
	_ = second.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := second.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the second connection was served: %v", err)
	}
	first.Close()
	_ = second.SetReadDeadline(time.Now().Add(long))
	if res, err := http.ReadResponse(bufio.NewReader(second), nil); err != nil || res.StatusCode != 200 {
		t.Error(res, err)
	}
	second.Close()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A stop fails readiness first, still serves for the delay, then answers what is
// under way and ends.
func TestDrain(t *testing.T) {
	g, s := slowRig(t, nil)
	address, stop, done := g.listening(Listening{DrainDelay: 300 * time.Millisecond, DrainTimeout: long})
	get := func(path string) (*http.Response, error) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: long}
		res, err := client.Get("http://" + address + path)
		if err == nil {
			_ = res.Body.Close()
		}
		return res, err
	}
	answered := make(chan int, 1)
	go func() {
		res, err := http.Post("http://"+address+"/lease", "", nil)
		if err != nil {
			t.Error(err)
			answered <- 0
			return
		}
		_ = res.Body.Close()
		answered <- res.StatusCode
	}()
	<-s.entered
	if res, err := get("/readyz"); err != nil || res.StatusCode != 200 {
		t.Fatal("before the stop:", res, err)
	}
	stop()
	for deadline := time.Now().Add(long); !g.server.stopping.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server does not stop")
		}
	}
	if res, err := get("/readyz"); err != nil || res.StatusCode != 503 {
		t.Error("readiness while stopping:", res, err)
	}
	if res, err := get("/healthz"); err != nil || res.StatusCode != 200 || !res.Close {
		t.Error("the listener went before the delay was over, or keeps connections:", res, err)
	}
	for deadline := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
		if _, err := get("/healthz"); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the listener stays open")
		}
	}
	select {
	case err := <-done:
		t.Error("Serve returned while a request was under way:", err)
	default:
	}
	close(s.letGo)
	if status := <-answered; status != 200 {
		t.Errorf("the request under way was answered %d", status)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// A request that takes longer than the drain timeout is cut off.
func TestDrainTimeout(t *testing.T) {
	g, s := slowRig(t, nil)
	address, stop, done := g.listening(Listening{DrainTimeout: 10 * time.Millisecond})
	failed := make(chan error, 1)
	go func() {
		res, err := http.Post("http://"+address+"/lease", "", nil)
		if err == nil {
			_ = res.Body.Close()
		}
		failed <- err
	}()
	<-s.entered
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if <-failed == nil {
		t.Error("the request was answered")
	}
	http.DefaultClient.CloseIdleConnections()
}
