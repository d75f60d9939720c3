package limitlistener

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) { await.Main(m) }

// site is a server of HTTP on real sockets.
type site struct {
	*testing.T
	l     net.Listener
	first chan net.Conn // the first connection, as the server has it

	mu      sync.Mutex
	refused []Refusal
}

func serve(t *testing.T, network, address string, limits Limits, idle time.Duration) *site {
	t.Helper()
	l, err := net.Listen(network, address)
	must.Succeed(t, err)
	s := &site{T: t, l: l, first: make(chan net.Conn, 1)}
	server := &http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: idle, IdleTimeout: idle,
		ConnState: func(nc net.Conn, _ http.ConnState) {
			select {
			case s.first <- nc:
			default:
			}
		},
	}
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(New(l, limits, func(r Refusal) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.refused = append(s.refused, r)
		}))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return s
}

// from connects from an address.
func (s *site) from(address string) net.Conn {
	s.Helper()
	dialer := net.Dialer{}
	if address != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(address)}
	}
	c, err := dialer.Dial(s.l.Addr().Network(), s.l.Addr().String())
	must.Succeed(s, err)
	s.Cleanup(func() { c.Close() })
	must.Succeed(s, c.SetDeadline(time.Now().Add(await.Patience)))
	return c
}

// ask makes a request, and reports whether it was answered.
func (s *site) ask(c net.Conn) bool {
	s.Helper()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return false
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.Error("a connection has neither an answer nor an end")
	}
	return err == nil && res.StatusCode == http.StatusOK
}

// said are the refusals since the last call.
func (s *site) said() (all []Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, s.refused = s.refused, nil
	return all
}

// Connections above a limit are closed at once, in all and of an address. Each is said to the
// server, with the limit. Those within the limits go on, and make room when they end.
func TestLimits(t *testing.T) {
	s := serve(t, "tcp", "127.0.0.1:0", Limits{Connections: 5, PerAddress: 2}, time.Hour)
	of := func(address string) Refusal { return Refusal{2, netip.MustParsePrefix(address + "/32")} }
	for _, step := range []struct {
		from string
		says []Refusal
	}{
		{from: "127.0.0.2"}, {from: "127.0.0.2"}, {"127.0.0.2", []Refusal{of("127.0.0.2")}},
		{from: "127.0.0.3"}, {from: "127.0.0.3"}, {"127.0.0.3", []Refusal{of("127.0.0.3")}},
		{from: "127.0.0.4"}, {"127.0.0.4", []Refusal{{Limit: 5}}}, {"127.0.0.5", []Refusal{{Limit: 5}}},
	} {
		if got := s.ask(s.from(step.from)); got != (step.says == nil) {
			t.Errorf("%+v: served is %v", step, got)
		}
		if said := s.said(); !slices.Equal(said, step.says) {
			t.Errorf("%+v: it said %+v", step, said)
		}
	}
	first := <-s.first
	must.Succeed(t, first.Close())
	_ = first.Close() // the server closes it as well: it counts down once
	await.Eventually(t, "the place is free", func() bool { return s.ask(s.from("127.0.0.2")) })
	if s.ask(s.from("127.0.0.5")) {
		t.Error("a connection that was closed twice has left two places")
	}
}

// Connections that idle make room for a newcomer when the server's time for them is over.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	s := serve(t, "tcp", "127.0.0.1:0", Limits{Connections: 20, PerAddress: 8}, 20*time.Millisecond)
	for i := range 40 {
		if c := s.from(fmt.Sprintf("127.0.0.%d", 2+i%4)); i%2 == 0 {
			s.ask(c)
		}
	}
	await.Eventually(t, "a newcomer is answered", func() bool { return s.ask(s.from("127.0.0.9")) })
}

// Connections over a Unix socket have no address: they count among all.
func TestUnixSockets(t *testing.T) {
	s := serve(t, "unix", filepath.Join(ring.Dir(t), "socket"), Limits{Connections: 3, PerAddress: 1}, time.Hour)
	for i := range 5 {
		if got := s.ask(s.from("")); got != (i < 3) {
			t.Errorf("connection %d: served is %v", i, got)
		}
	}
	if said, want := s.said(), []Refusal{{Limit: 3}, {Limit: 3}}; !slices.Equal(said, want) {
		t.Errorf("it said %+v", said)
	}
}

// Without a limit of their own, the connections of an address count among all.
func TestNoLimitPerAddress(t *testing.T) {
	s := serve(t, "tcp", "127.0.0.1:0", Limits{Connections: 3}, time.Hour)
	for i := range 4 {
		if got := s.ask(s.from("127.0.0.2")); got != (i < 3) {
			t.Errorf("connection %d: served is %v", i, got)
		}
	}
}

func TestRefusalsInWords(t *testing.T) {
	for want, r := range map[string]Refusal{
		"all 9 connections are in use":                                  {Limit: 9},
		"address 10.0.0.1 has 9 connections, as many as one may have":   {9, Network("10.0.0.1:7")},
		"address 2001:db8:: has 9 connections, as many as one may have": {9, Network("[2001:db8::1]:7")},
	} {
		if got := r.String(); got != want {
			t.Errorf("%+v is %q", r, got)
		}
	}
}

func TestNetwork(t *testing.T) {
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1:1", "10.0.0.1:2", true}, {"10.0.0.1:1", "10.0.0.2:1", false}, {"10.0.0.1:1", "[::ffff:10.0.0.1]:2", true},
		{"[2001:db8::1]:1", "[2001:db8::ffff:2]:1", true}, {"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false}, {"[fe80::1%a]:1", "[fe80::2%b]:1", true},
	} {
		if a, b := Network(test.a), Network(test.b); !a.IsValid() || (a == b) != test.same {
			t.Errorf("%s is of %s, and %s of %s", test.a, a, test.b, b)
		}
	}
	for _, none := range []string{"", "@", "/run/socket", "10.0.0.1"} {
		if got := Network(none); got.IsValid() {
			t.Errorf("%q is of %s", none, got)
		}
	}
}
