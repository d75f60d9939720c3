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
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/operator/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const long = time.Minute // anything, on a busy machine

// large is an answer that no buffer holds.
var large = make([]byte, 16<<20)

// site is a guarded server. Requests for /prove have a credential.
type site struct {
	*testing.T
	address string
	guard   *Guard
	writing chan struct{} // a large answer begins
	mu      sync.Mutex
	closed  map[Reason]int
}

func open(t *testing.T, limits Limits, secure bool) *site {
	s := &site{T: t, writing: make(chan struct{}, 100), closed: map[Reason]int{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	g := New(limits, func(why Reason, _ string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed[why]++
	})
	s.guard = g
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/prove":
			Proven(r.Context())
		case "/patient":
			Patient(r.Context())
		case "/read":
			_, _ = io.Copy(io.Discard, r.Body)
		case "/large":
			s.writing <- struct{}{}
			_, _ = w.Write(large)
		}
	}))
	_ = server.Listener.Close()
	server.Listener = g.Listener(l)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	g.Protect(server.Config)
	server.EnableHTTP2 = secure
	server.Config.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerConnection: Window, MaxReceiveBufferPerStream: Window}
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
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
	if err != nil {
		s.Fatal(err)
	}
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
			s := open(t, Limits{Connections: 3, Unproven: time.Hour}, attack.http2)
			first := s.attack(attack)
			for range 5 {
				s.attack(attack)
			}
			newcomer := s.dial()
			if attack.http2 {
				newcomer = tls.Client(newcomer, &tls.Config{InsecureSkipVerify: true})
			}
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
	for deadline := time.Now().Add(long); !s.ask(s.dial(), "/"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the place is not given back")
		}
	}
}

func TestAddresses(t *testing.T) {
	of := func(text string) any {
		a, err := net.ResolveTCPAddr("tcp", text)
		if err != nil {
			t.Fatal(err)
		}
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

// Over TLS and HTTP/2 a connection is the same: without a handshake it ends, and with a
// credential it stays.
func TestHTTP2(t *testing.T) {
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
		if res.ProtoMajor != 2 {
			return fmt.Errorf("it is %s", res.Proto)
		}
		return nil
	}
	for deadline := time.Now().Add(long); get("/prove") != nil; {
		if time.Now().After(deadline) {
			t.Fatal("not served")
		}
	}
	before := dialled.Load()
	s.over(s.dial()) // an unproven connection has ended in the meantime
	if err := get("/"); err != nil || dialled.Load() != before {
		t.Errorf("%v, %d connections instead of %d", err, dialled.Load(), before)
	}
}

// A limit that closes connections is in the book, with the peer; a wait that was too long is
// no refusal.
func TestNote(t *testing.T) {
	book := quota.New(zap.NewNop(), func(string) {})
	note := Note(book, map[Reason]quota.Refusal{Full: {Quota: "all", Limit: 9}, PerAddress: {Quota: "one", Limit: 3}})
	for why, peer := range map[Reason]string{Full: "10.0.0.1/32", PerAddress: "UID 7", Unproven: "UID 8"} {
		note(why, peer)
	}
	got := map[quota.Refusal]bool{}
	for _, hit := range book.Recent() {
		got[hit.Refusal] = true
	}
	if len(got) != 2 || !got[quota.Refusal{Quota: "all", Limit: 9, Whose: "address 10.0.0.1"}] || !got[quota.Refusal{Quota: "one", Limit: 3, Whose: "UID 7"}] {
		t.Errorf("the book has %+v", got)
	}
}

// requests asks for a large answer so often, over HTTP/2, on one connection that lets
// nothing through. With prove, the connection has shown a credential.
func (s *site) requests(from string, n int, prove bool) {
	s.Helper()
	c := tls.Client(s.dialFrom(from), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	stream := uint32(1)
	text := preface + frame(settings, 0, 0, noWindow)
	if prove {
		text += frame(headers, endStream|endHeaders, stream, get("/prove"))
		stream += 2
	}
	for range n {
		text += frame(headers, endStream|endHeaders, stream, get("/large"))
		stream += 2
	}
	if _, err := io.WriteString(c, text); err != nil {
		s.Fatal(err)
	}
}

// Requests that wait for peers that do not read are few, however many connections make
// them: the connection that has the most of them ends, and one with a credential last.
func TestRequestsAreLimited(t *testing.T) {
	s := open(t, Limits{Connections: 100, Requests: 50, Unproven: long}, true)
	stop, drained := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(drained)
		for {
			select {
			case <-s.writing:
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() { // before the server closes
		close(stop)
		<-drained
	})
	wait := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
			s.guard.mu.Lock()
			ok, more, leaving := done(), s.guard.more, s.guard.leaving
			s.guard.mu.Unlock()
			if more+leaving > 50+3 { // three connections have one each that does not count before they leave
				t.Fatalf("%d requests, and %d that end", more, leaving)
			}
			if ok {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("not %s: %d requests, and %d that end", what, more, leaving)
			}
		}
	}
	s.requests("127.0.0.3", 12, true)
	s.requests("127.0.0.2", 5, false)
	wait("others ask", func() bool { return s.guard.more == 11+4 })
	s.requests("127.0.0.1", 31, false)
	wait("one connection asks for much", func() bool { return s.guard.more == 11+4+30 })
	s.requests("127.0.0.1", 31, false)
	wait("it makes room", func() bool { return s.guard.leaving == 0 && len(s.guard.crowded) >= 2 && s.guard.more < 11+4+30 })
	if s.count(Requests) == 0 {
		t.Error("no connection was closed")
	}
	s.guard.mu.Lock()
	left := map[int]bool{}
	for c := range s.guard.crowded {
		left[c.busy] = true
	}
	s.guard.mu.Unlock()
	if !left[12] || !left[5] {
		t.Errorf("connections with so many requests are left: %v", left)
	}
}

// A request that may not go on counts nowhere, and one on a connection that has left neither.
// The first is told of.
func TestRefusedRequestsCountNowhere(t *testing.T) {
	told := 0
	g := New(Limits{Connections: 10, Requests: 1, Unproven: long}, func(why Reason, _ string) {
		if why == Requests {
			told++
		}
	})
	connect := func() *conn {
		server, client := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		return g.admit(server)
	}
	counts := func(what string, c *conn, busy, leaving int) {
		t.Helper()
		if c.busy != busy || c.noise.busy != busy || g.more != 0 || c.peer.more != 0 || len(g.crowded) != 0 || g.leaving != leaving {
			t.Errorf("%s: %d and %d are under way, %d and %d beside them on %d connections, %d leave",
				what, c.busy, c.noise.busy, g.more, c.peer.more, len(g.crowded), g.leaving)
		}
	}
	goes := func(c *conn) bool { goes, _ := c.begin(); return goes }
	left, c := connect(), connect()
	if !goes(left) || !goes(c) {
		t.Fatal("the first requests may not go on")
	}
	_ = left.Close()
	if goes(c) || told != 1 {
		t.Errorf("a second one may go on while another leaves, or %d are told of", told)
	}
	counts("refused", c, 1, 1)
	left.end()
	if !goes(c) {
		t.Error("a second one may not go on, and none leaves")
	}
	c.end()
	c.end()
	counts("ended", c, 0, 0)
	_ = c.Close()
	if goes(c) {
		t.Error("a request of a connection that has left may go on")
	}
	counts("gone", c, 0, 0)
}
