package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/threads"
	"github.com/kazahana/kazahana/internal/turnstile"
)

// slowSite is a guarded server with TLS, one of whose handshakes is worked at, and waits there.
type slowSite struct {
	*testing.T
	guard   *Guard
	address string
	client  *tls.Config
	began   chan string // the client's address, when it is its turn
	goOn    chan struct{}
}

func openSlow(t *testing.T, change func(*slowSite, *tls.Config)) *slowSite {
	processors := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(processors) })
	s := &slowSite{T: t, client: &tls.Config{InsecureSkipVerify: true}, began: make(chan string, 100), goOn: make(chan struct{})}
	cert, key := certtest.New(t, "authority").Issue("server")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	s.address = l.Addr().String()
	s.guard = New(Limits{Connections: 100, Unproven: long}, func(Reason, string) {})
	config := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		host, _, _ := net.SplitHostPort(hello.Conn.RemoteAddr().String())
		s.began <- host
		<-s.goOn
		return nil, nil
	}}
	if change != nil {
		change(s, config)
	}
	server := &http.Server{TLSConfig: config, Handler: http.NotFoundHandler(), ErrorLog: log.New(io.Discard, "", 0)}
	s.guard.Protect(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.ServeTLS(s.guard.Listener(l), cert, key)
	}()
	t.Cleanup(func() {
		close(s.goOn)
		_ = server.Close()
		<-served
		s.noTurnIsLeft()
	})
	return s
}

// greet begins so many handshakes from an address, of which so many wait then.
func (s *slowSite) greet(from string, n, waiting int) (all []net.Conn) {
	s.Helper()
	var greeting sync.WaitGroup
	s.Cleanup(greeting.Wait)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for range n {
		c, err := dialer.Dial("tcp", s.address)
		must.Succeed(s, err)
		s.Cleanup(func() { c.Close() })
		greeting.Go(func() { _ = tls.Client(c, s.client).Handshake() })
		all = append(all, c)
	}
	s.wait(waiting)
	return all
}

// wait waits until so many handshakes wait for their turns.
func (s *slowSite) wait(n int) {
	s.Helper()
	await.Eventually(s.T, "the handshakes wait", func() bool { return s.guard.handshakes.Waiting() == n })
}

// next waits for the next handshake's turn, and returns whose it is.
func (s *slowSite) next() string {
	s.Helper()
	select {
	case whose := <-s.began:
		return whose
	case <-time.After(await.Patience):
		s.Fatal("no handshake has the next turn")
		return ""
	}
}

// noTurnIsLeft waits until all turns are given back.
func (s *slowSite) noTurnIsLeft() {
	s.Helper()
	await.Eventually(s.T, "no turn is left", func() bool { return isFree(s.guard) })
}

// isFree reports whether nothing has the guard's only turn, or waits for it.
func isFree(g *Guard) bool {
	ended, end := context.WithCancel(context.Background())
	end()
	if g.handshakes.Enter(ended, "the test") != nil {
		return false
	}
	g.handshakes.Leave()
	return true
}

// A peer with many handshakes delays another's by one of them.
func TestHandshakesTakeTurns(t *testing.T) {
	s := openSlow(t, nil)
	s.greet("127.0.0.2", 10, 9)
	s.greet("127.0.0.3", 1, 10)
	var order []string
	for range 3 {
		order = append(order, s.next())
		s.goOn <- struct{}{}
	}
	if got := strings.Join(order, " "); got != "127.0.0.2 127.0.0.2 127.0.0.3" {
		t.Errorf("the turns were those of %s", got)
	}
}

// A client that is asked for another greeting waits for another turn: else a herd whose first
// greetings lack a key would be before everybody else.
func TestHandshakesThatBeginAgain(t *testing.T) {
	s := openSlow(t, func(_ *slowSite, c *tls.Config) {
		c.CurvePreferences = []tls.CurveID{tls.CurveP521} // for which Go's client sends no key at first
	})
	first := s.greet("127.0.0.2", 1, 0)
	s.next()
	second := s.greet("127.0.0.3", 1, 1)
	s.goOn <- struct{}{}
	if from := s.next(); from != "127.0.0.3" {
		t.Errorf("the turn is that of %s", from)
	}
	s.wait(1)
	_ = first[0].Close()
	s.goOn <- struct{}{}
	s.wait(0)
	_ = second[0].Close()
	await.Eventually(t, "no turn is left", func() bool {
		s.guard.mu.Lock()
		defer s.guard.mu.Unlock()
		return s.guard.open == 0
	})
	for range 3 {
		c, err := net.Dial("tcp", s.address)
		must.Succeed(t, err)
		_ = c.SetDeadline(time.Now().Add(await.Patience))
		go func() { <-s.began; s.goOn <- struct{}{} }()
		served := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
		if err := served.Handshake(); err != nil {
			t.Error(err)
		}
		_ = served.Close()
	}
}

// What the server works at after its answer to the greeting has turns too: the check of a
// certificate, and the client's key in TLS 1.2.
func TestCertificatesTakeTurns(t *testing.T) {
	clients := certtest.New(t, "clients")
	pair, err := tls.LoadX509KeyPair(clients.Issue("client"))
	must.Succeed(t, err)
	known := x509.NewCertPool()
	known.AddCert(clients.Certificate())
	for name, test := range map[string]struct {
		auth    tls.ClientAuthType
		version uint16 // of the client
	}{
		"a certificate":              {tls.RequireAndVerifyClientCert, tls.VersionTLS13},
		"a certificate in TLS 1.2":   {tls.RequireAndVerifyClientCert, tls.VersionTLS12},
		"none of those it may send":  {tls.VerifyClientCertIfGiven, tls.VersionTLS13},
		"none of those in TLS 1.2":   {tls.VerifyClientCertIfGiven, tls.VersionTLS12},
		"no certificates in TLS 1.2": {tls.NoClientCert, tls.VersionTLS12},
	} {
		t.Run(name, func(t *testing.T) {
			s := openSlow(t, func(s *slowSite, c *tls.Config) {
				s.client.MaxVersion = test.version
				c.ClientAuth, c.ClientCAs = test.auth, known
				if test.auth == tls.RequireAndVerifyClientCert {
					s.client.Certificates = []tls.Certificate{pair}
				}
				c.VerifyConnection = func(tls.ConnectionState) error {
					s.began <- "its second part"
					<-s.goOn
					return nil
				}
			})
			s.greet("127.0.0.2", 1, 0)
			var order []string
			turn := func() {
				order = append(order, s.next())
				s.goOn <- struct{}{}
			}
			turn()
			order = append(order, s.next())
			s.greet("127.0.0.3", 1, 1) // it waits for the second part's end
			s.goOn <- struct{}{}
			turn()
			turn()
			if got := strings.Join(order, ", "); got != "127.0.0.2, its second part, 127.0.0.3, its second part" {
				t.Errorf("the turns were those of %s", got)
			}
			go func() {
				for range 2 {
					<-s.began
					s.goOn <- struct{}{}
				}
			}()
			site := &http.Client{Transport: &http.Transport{TLSClientConfig: s.client}, Timeout: await.Patience}
			defer site.CloseIdleConnections()
			for range 3 { // on one connection, which has its turns back
				answer, err := site.Get("https://" + s.address)
				must.Succeed(t, err)
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
			s.noTurnIsLeft()
		})
	}
}

// A client that has gone while it waited costs no handshake.
func TestHandshakesOfClientsThatAreGone(t *testing.T) {
	s := openSlow(t, nil)
	s.greet("127.0.0.2", 1, 0)
	s.next()
	for _, c := range s.greet("127.0.0.3", 3, 3) {
		_ = c.Close()
	}
	await.Eventually(t, "the system knows that they are gone", func() bool {
		s.guard.mu.Lock()
		defer s.guard.mu.Unlock()
		gone := 0
		for _, p := range s.guard.peers {
			for at := p.unproven.Front(); at != nil; at = at.Next() {
				if stoppedSending(at.Value.(*conn).Conn) {
					gone++
				}
			}
		}
		return gone == 3
	})
	s.goOn <- struct{}{}
	s.wait(0)
	s.greet("127.0.0.4", 1, 0)
	if from := s.next(); from != "127.0.0.4" {
		t.Errorf("the turn is that of %s", from)
	}
}

// A connection that ends while it waits for its turn gets none, and one that ends in its turn
// gives it back.
func TestHandshakesThatEnd(t *testing.T) {
	s := openSlow(t, nil)
	s.greet("127.0.0.2", 4, 3)
	s.next()
	s.guard.mu.Lock()
	for _, p := range s.guard.peers {
		for at := p.unproven.Front(); at != nil; at = p.unproven.Front() {
			c := at.Value.(*conn)
			c.leave()
			_ = c.Conn.Close()
		}
	}
	s.guard.mu.Unlock()
	s.wait(0)
	s.goOn <- struct{}{}
	s.greet("127.0.0.3", 1, 0)
	if from := s.next(); from != "127.0.0.3" {
		t.Errorf("the turn is that of %s", from)
	}
}

// A handshake that panics, and one whose client hangs up in its turn, give the turn back.
func TestHandshakesThatFail(t *testing.T) {
	for _, panics := range []bool{false, true} {
		for part := range 2 {
			t.Run(fmt.Sprintf("part %d, panics: %v", part+1, panics), func(t *testing.T) {
				work := func(s *slowSite, this int) {
					s.began <- "the turn"
					<-s.goOn
					if panics && this == part {
						panic("what a handshake should not do")
					}
				}
				s := openSlow(t, func(s *slowSite, c *tls.Config) {
					c.ClientAuth = tls.RequestClientCert
					c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { work(s, 0); return nil, nil }
					c.VerifyConnection = func(tls.ConnectionState) error { work(s, 1); return nil }
				})
				c := s.greet("127.0.0.2", 1, 0)[0]
				for range part {
					s.next()
					s.goOn <- struct{}{}
				}
				s.next()
				if isFree(s.guard) {
					t.Error("the handshake has no turn")
				}
				if !panics {
					_ = c.Close()
				}
				s.goOn <- struct{}{}
				s.noTurnIsLeft()
			})
		}
	}
}

// A connection that ends when its turn has just come keeps none.
func TestHandshakesThatEndAsTheyBegin(t *testing.T) {
	g := New(Limits{Connections: 1, Unproven: long}, func(Reason, string) {})
	near, far := net.Pipe()
	defer far.Close()
	c := g.admit(near)
	defer c.Close()
	ended, end := context.WithCancel(context.Background())
	end()
	g.handshakes = turnstile.New[any](1)
	if err := c.beginHandshake(ended); err == nil {
		t.Error("it has begun")
	}
	if !isFree(g) {
		t.Error("it keeps its turn")
	}
}

// announced tells when it is read.
type announced struct {
	net.Conn
	read chan struct{}
}

func (a announced) Read(b []byte) (int, error) {
	a.read <- struct{}{}
	return a.Conn.Read(b)
}

// net/http begins to read before a handler is called, so as to notice a client that leaves. What
// that read finds during the request has no turn: it would last as long as the request, for which
// a client may have to wait.
func TestReadsDuringRequestsTakeNoTurn(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprintf("it waits for its turn when the request begins: %v", waits), func(t *testing.T) {
			g := New(Limits{Connections: 1, Unproven: long}, func(Reason, string) {})
			g.handshakes = turnstile.New[any](1)
			near, far := net.Pipe()
			defer far.Close()
			reads := make(chan struct{}, 1)
			c := g.admit(announced{near, reads})
			defer c.Close()
			c.more.Store(true) // as after the server's answer to the greeting
			read := make(chan error, 1)
			go func() {
				_, err := c.Read(make([]byte, 1))
				read <- err
			}()
			<-reads
			send := func() {
				if _, err := far.Write([]byte("G")); err != nil {
					t.Error(err)
				}
			}
			must.Succeed(t, g.handshakes.Enter(t.Context(), "another"))
			if waits {
				send()
				await.Eventually(t, "the read waits", func() bool { return g.handshakes.Waiting() == 1 })
				c.begin()
				g.handshakes.Leave()
			} else {
				c.begin()
				send()
				await.Eventually(t, "the read waits for no turn", func() bool { return len(read) == 1 })
				g.handshakes.Leave()
			}
			if err := <-read; err != nil {
				t.Error(err)
			}
			if !isFree(g) {
				t.Error("the read keeps a turn during the request")
			}
		})
	}
}

// With one processor more, which is left for requests, as many handshakes are worked at as there
// were processors before.
func TestHandshakesLeaveAProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	end := threads.AddProcessor()
	if runtime.GOMAXPROCS(0) != before+1 || atOnce() != before {
		t.Errorf("%d processors instead of %d, and %d handshakes at once", runtime.GOMAXPROCS(0), before, atOnce())
	}
	if end(); runtime.GOMAXPROCS(0) != before {
		t.Errorf("afterwards there are %d processors", runtime.GOMAXPROCS(0))
	}
}
