package guard

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
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
	if err != nil {
		t.Fatal(err)
	}
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
	server := &http.Server{TLSConfig: config, Handler: http.NotFoundHandler()}
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
		if err != nil {
			s.Fatal(err)
		}
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

// noTurnIsLeft waits until all turns are given back.
func (s *slowSite) noTurnIsLeft() {
	s.Helper()
	await.Eventually(s.T, "no turn is left", func() bool { return s.guard.handshakes.Under() == 0 })
}

// A peer with many handshakes delays another's by one of them.
func TestHandshakesTakeTurns(t *testing.T) {
	s := openSlow(t, nil)
	s.greet("127.0.0.2", 10, 9)
	s.greet("127.0.0.3", 1, 10)
	var order []string
	for range 3 {
		order = append(order, <-s.began)
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
	<-s.began
	second := s.greet("127.0.0.3", 1, 1)
	s.goOn <- struct{}{}
	if from := <-s.began; from != "127.0.0.3" {
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
		if err != nil {
			t.Fatal(err)
		}
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
	for name, test := range map[string]struct {
		auth    tls.ClientAuthType
		version uint16 // of the client
	}{
		"a certificate":             {tls.VerifyClientCertIfGiven, tls.VersionTLS13},
		"a certificate in TLS 1.2":  {tls.VerifyClientCertIfGiven, tls.VersionTLS12},
		"no certificate in TLS 1.2": {tls.NoClientCert, tls.VersionTLS12},
	} {
		t.Run(name, func(t *testing.T) {
			s := openSlow(t, func(s *slowSite, c *tls.Config) {
				s.client.MaxVersion = test.version
				c.ClientAuth = test.auth
				c.VerifyConnection = func(tls.ConnectionState) error {
					s.began <- "its second part"
					<-s.goOn
					return nil
				}
			})
			s.greet("127.0.0.2", 1, 0)
			var order []string
			turn := func() {
				order = append(order, <-s.began)
				s.goOn <- struct{}{}
			}
			turn()
			order = append(order, <-s.began)
			s.greet("127.0.0.3", 1, 1) // it waits for the second part's end
			s.goOn <- struct{}{}
			turn()
			turn()
			if got := strings.Join(order, ", "); got != "127.0.0.2, its second part, 127.0.0.3, its second part" {
				t.Errorf("the turns were those of %s", got)
			}
			go func() {
				turn()
				turn()
			}()
			site := &http.Client{Transport: &http.Transport{TLSClientConfig: s.client}}
			defer site.CloseIdleConnections()
			for range 3 { // on one connection, which has its turns back
				answer, err := site.Get("https://" + s.address)
				if err != nil {
					t.Fatal(err)
				}
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
	<-s.began
	for _, c := range s.greet("127.0.0.3", 3, 3) {
		_ = c.Close()
	}
	await.Eventually(t, "the system knows that they are gone", func() bool {
		s.guard.mu.Lock()
		defer s.guard.mu.Unlock()
		gone := 0
		for _, p := range s.guard.peers {
			for at := p.unproven.Front(); at != nil; at = at.Next() {
				if hungUp(at.Value.(*conn).Conn) {
					gone++
				}
			}
		}
		return gone == 3
	})
	s.goOn <- struct{}{}
	s.wait(0)
	s.greet("127.0.0.4", 1, 0)
	if from := <-s.began; from != "127.0.0.4" {
		t.Errorf("the turn is that of %s", from)
	}
}

// A connection that ends while it waits for its turn gets none, and one that ends in its turn
// gives it back.
func TestHandshakesThatEnd(t *testing.T) {
	s := openSlow(t, nil)
	s.greet("127.0.0.2", 4, 3)
	<-s.began
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
	if from := <-s.began; from != "127.0.0.3" {
		t.Errorf("the turn is that of %s", from)
	}
}

// With the spare processor, which is left for requests, as many handshakes are worked at as there
// were processors before.
func TestSpareProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	end := SpareProcessor()
	if runtime.GOMAXPROCS(0) != before+1 || atOnce() != before {
		t.Errorf("%d processors instead of %d, and %d handshakes at once", runtime.GOMAXPROCS(0), before, atOnce())
	}
	if end(); runtime.GOMAXPROCS(0) != before {
		t.Errorf("afterwards there are %d processors", runtime.GOMAXPROCS(0))
	}
}
