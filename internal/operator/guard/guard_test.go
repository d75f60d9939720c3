package guard

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

const long = time.Minute // anything, on a busy machine

// large is an answer that no buffer holds.
var large = make([]byte, 16<<20)

// site is a guarded server. Requests for /prove have a credential.
type site struct {
	*testing.T
	address string
	writing chan struct{} // a large answer begins
	mu      sync.Mutex
	closed  map[Reason]int
}

func open(t *testing.T, limits Limits, secure bool) *site {
	s := &site{T: t, writing: make(chan struct{}, 100), closed: map[Reason]int{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	s.address = l.Addr().String()
	g := New(limits, func(why Reason, _ string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed[why]++
	})
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/prove":
			Proven(r.Context())
		case "/patient":
			Patient(r.Context())
		case "/large":
			s.writing <- struct{}{}
			_, _ = w.Write(large)
		}
	})}
	g.Protect(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if secure {
			cert, key := certtest.New(t, "authority").Issue("server")
			_ = server.ServeTLS(g.Listener(l), cert, key)
		} else {
			_ = server.Serve(g.Listener(l))
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return s
}

func (s *site) count(why Reason) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed[why]
}

func (s *site) dial() net.Conn { s.Helper(); return s.dialFrom("127.0.0.1") }

func (s *site) dialFrom(address string) net.Conn {
	s.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := dialer.Dial("tcp", s.address)
	must.Succeed(s, err)
	s.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(long))
	return c
}

// ask makes a request, and reports whether it was answered.
func (s *site) ask(c net.Conn, path string) bool {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path); err != nil {
		return false
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	return err == nil && res.StatusCode == 200
}

// over waits for the end of a connection.
func (s *site) over(c net.Conn) {
	s.Helper()
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		s.Error("the connection stays open")
	}
}

// Connections without a credential take no place from newcomers, whatever they do: the
// oldest makes room.
func TestNewcomersGetIn(t *testing.T) {
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			s := open(t, Limits{Connections: 3, Unproven: time.Hour}, false)
			first := s.attack(attack)
			for range 5 {
				s.attack(attack)
			}
			newcomer := s.dial()
			if !s.ask(newcomer, "/") {
				t.Error("a newcomer is not served")
			}
			s.over(first)
		})
	}
}

// An unproven connection is closed when it has waited for its next request for too long,
// and a proven one is not.
func TestUnprovenConnectionsEnd(t *testing.T) {
	s := open(t, Limits{Connections: 10, Unproven: 50 * time.Millisecond}, false)
	proven := s.dial()
	for !s.ask(proven, "/prove") { // on a busy machine the time may be over before the request comes
		proven = s.dial()
	}
	asked := s.dial()
	s.ask(asked, "/")
	for _, c := range []net.Conn{s.dial(), asked} {
		s.over(c)
	}
	if !s.ask(proven, "/") || s.count(Unproven) < 2 {
		t.Errorf("a proven connection is closed, or %d unproven ones", s.count(Unproven))
	}
}

// A proven connection makes no room, and a patient one may wait but does.
func TestProvenConnectionsStay(t *testing.T) {
	s := open(t, Limits{Connections: 1, Unproven: time.Hour}, false)
	proven := s.dial()
	if !s.ask(proven, "/prove") {
		t.Fatal("not served")
	}
	s.over(s.dial())
	if !s.ask(proven, "/") || s.count(Full) != 1 {
		t.Errorf("closed were %v", s.closed)
	}
	s = open(t, Limits{Connections: 1, Unproven: 50 * time.Millisecond}, false)
	patient := s.dial()
	for !s.ask(patient, "/patient") {
		patient = s.dial()
	}
	time.Sleep(200 * time.Millisecond)
	if before := s.count(Full); !s.ask(patient, "/") {
		t.Error("a patient connection may not wait")
	} else if s.dial(); true {
		s.over(patient)
		if n := s.count(Full); n != before+1 {
			t.Errorf("%d were replaced", n-before)
		}
	}
}

// The peer with the most connections makes room, and within its own limit a peer makes
// room for itself.
func TestPeersAreEqual(t *testing.T) {
	s := open(t, Limits{Connections: 3, PerAddress: 2, Unproven: time.Hour}, false)
	one := s.dialFrom("127.0.0.1")
	if !s.ask(one, "/") {
		t.Fatal("not served")
	}
	var many []net.Conn
	for range 10 {
		c := s.dialFrom("127.0.0.2")
		if !s.ask(c, "/") {
			t.Fatal("its newest connection is not served")
		}
		many = append(many, c)
	}
	other := s.dialFrom("127.0.0.3")
	if !s.ask(other, "/") || !s.ask(one, "/") || !s.ask(many[9], "/") {
		t.Errorf("one of those with few connections, or the newest of many, is closed: %v", s.closed)
	}
	for _, c := range many[:9] {
		s.over(c)
	}
}

// A herd takes no places of its own young connections, nor those of a peer that would have fewer
// then; others take them at once.
func TestHerdsAreTurnedAway(t *testing.T) {
	s := open(t, Limits{Connections: 5, PerAddress: 3, Unproven: time.Hour, Young: time.Hour}, false)
	served := func(from string) net.Conn {
		c := s.dialFrom(from)
		if !s.ask(c, "/") {
			t.Fatalf("%s is not served", from)
		}
		return c
	}
	first := []net.Conn{served("127.0.0.2"), served("127.0.0.2"), served("127.0.0.3"), served("127.0.0.3"), served("127.0.0.5")}
	for range 5 {
		for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.5"} {
			s.over(s.dialFrom(from))
		}
	}
	for i, c := range first {
		if !s.ask(c, "/") {
			t.Errorf("connection %d had to make room", i)
		}
	}
	served("127.0.0.4")
	if n := s.count(Full); n != 16 {
		t.Errorf("%d were closed, want fifteen of the herd and one that made room", n)
	}
	alone := open(t, Limits{Connections: 10, PerAddress: 1, Young: time.Hour, Unproven: time.Hour}, false)
	own := alone.dial()
	if !alone.ask(own, "/") {
		t.Fatal("not served")
	}
	if alone.over(alone.dial()); !alone.ask(own, "/") || alone.count(PerAddress) != 1 {
		t.Error("within an address's own limit a young connection had to make room")
	}
}

// One address has no more than its part, and gets a place back.
func TestPerAddress(t *testing.T) {
	s := open(t, Limits{Connections: 10, PerAddress: 2, Unproven: time.Hour}, false)
	first := s.dial()
	if !s.ask(first, "/prove") || !s.ask(s.dial(), "/prove") {
		t.Fatal("not served")
	}
	s.over(s.dial())
	if n := s.count(PerAddress); n != 1 {
		t.Errorf("%d were closed", n)
	}
	if !s.ask(s.dialFrom("127.0.0.2"), "/") {
		t.Error("another address is not served")
	}
	first.Close()
	await.Eventually(t, "the place is given back", func() bool { return s.ask(s.dial(), "/") })
}

func TestAddresses(t *testing.T) {
	of := func(text string) any {
		a, err := net.ResolveTCPAddr("tcp", text)
		must.Succeed(t, err)
		return Network(a.String())
	}
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1:1", "10.0.0.1:2", true}, {"10.0.0.1:1", "10.0.0.2:1", false}, {"10.0.0.1:1", "[::ffff:10.0.0.1]:2", true},
		{"[2001:db8::1]:1", "[2001:db8::ffff:2]:1", true}, {"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
	} {
		if (of(test.a) == of(test.b)) != test.same {
			t.Errorf("%s and %s", test.a, test.b)
		}
	}
}

// With TLS a connection is the same: without a handshake it ends, and with a credential it
// stays. A client that would rather speak HTTP/2 speaks HTTP/1.
func TestTLS(t *testing.T) {
	s := open(t, Limits{Connections: 3, Unproven: 200 * time.Millisecond}, true)
	s.over(s.dial()) // no handshake
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	var dialled atomic.Int64
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	client := &http.Client{Transport: transport, Timeout: long}
	get := func(path string) error {
		res, err := client.Get("https://" + s.address + path)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.ProtoMajor != 1 {
			return fmt.Errorf("it is %s", res.Proto)
		}
		return nil
	}
	await.Success(t, "it is served", func() error { return get("/prove") })
	before := dialled.Load()
	s.over(s.dial()) // an unproven connection has ended in the meantime
	if err := get("/"); err != nil || dialled.Load() != before {
		t.Errorf("%v, %d connections instead of %d", err, dialled.Load(), before)
	}
}

// Connections that have sent many requests ahead take turns.
func TestRequestsSentAheadTakeTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	const each = 300 // fit the kernel's buffers, and so do the answers
	began, letGo := make(chan struct{}, 2), make(chan struct{})
	order := make(chan string, 2*each)
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-letGo:
		default:
			began <- struct{}{}
			<-letGo
		}
		order <- r.RemoteAddr
	})}
	g := New(Limits{Connections: 2, Unproven: long}, func(Reason, string) {})
	g.Protect(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(g.Listener(l)) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		must.Succeed(t, err)
		defer c.Close()
		if _, err := io.WriteString(c, strings.Repeat(request1, each)); err != nil {
			t.Fatal(err)
		}
		<-began
	}
	close(letGo)
	turns, last := 0, ""
	for range 2 * each {
		if now := <-order; now != last {
			turns, last = turns+1, now
		}
	}
	if turns < each/10 { // nearly 600 on an idle machine, 89 were seen on a busy one; without turns there are 3
		t.Errorf("there were %d turns", turns)
	}
}

// A limit that closes connections is in the statistics, with the peer; a wait that was too long is
// no refusal.
func TestNote(t *testing.T) {
	stats := quota.New(zap.NewNop(), func(string) {})
	note := Note(stats, map[Reason]quota.Refusal{Full: {Quota: "all", Limit: 9}, PerAddress: {Quota: "one", Limit: 3}})
	for why, peer := range map[Reason]string{Full: "10.0.0.1/32", PerAddress: "UID 7", Unproven: "UID 8"} {
		note(why, peer)
	}
	got := map[quota.Refusal]bool{}
	for _, hit := range stats.Recent() {
		got[hit.Refusal] = true
	}
	if len(got) != 2 || !got[quota.Refusal{Quota: "all", Limit: 9, Whose: "address 10.0.0.1"}] || !got[quota.Refusal{Quota: "one", Limit: 3, Whose: "UID 7"}] {
		t.Errorf("the statistics have %+v", got)
	}
}
