package guard

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Who sends frames on and on, and asks for nothing, is cut off, with a credential as without.
func TestNoiseEndsTheConnection(t *testing.T) {
	hello := preface + frame(settings, 0, 0, "")
	for name, a := range map[string]struct{ first, flood string }{
		"pings":                   {hello, frame(ping, 0, 0, "12345678")},
		"settings":                {hello, frame(settings, 0, 0, "")},
		"pings of a proven one":   {hello + frame(headers, endStream|endHeaders, 1, get("/prove")), frame(ping, 0, 0, "12345678")},
		"frames of unknown kinds": {hello, frame(99, 0, 0, strings.Repeat("x", 1000))},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Limits{Connections: 10, Unproven: long}, true)
			c := tls.Client(s.dial(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			defer c.Close()
			done := make(chan struct{})
			go func() { defer close(done); _, _ = io.Copy(io.Discard, c) }()
			_, err := io.WriteString(c, a.first)
			sent := 0
			for err == nil && sent < 64<<20 {
				var n int
				n, err = io.WriteString(c, strings.Repeat(a.flood, 100))
				sent += n
			}
			_ = c.NetConn().Close()
			<-done
			if s.count(Noise) != 1 {
				t.Errorf("%d connections were closed for noise, after %d bytes", s.count(Noise), sent)
			}
		})
	}
}

// Who asks may go on for ever, over either protocol: with many requests, the longest bodies,
// and the longest answers.
func TestRequestsAreNoNoise(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		s := open(t, Limits{Connections: 10, Unproven: long}, true)
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: http2, MaxConnsPerHost: 1}
		client := &http.Client{Transport: transport, Timeout: long}
		ask := func(path string, body int) {
			t.Helper()
			r, err := client.Post("https://"+s.address+path, "", strings.NewReader(strings.Repeat("x", body)))
			if err != nil {
				t.Fatalf("HTTP/2 %v, noise %d: %v", http2, s.count(Noise), err)
			}
			defer r.Body.Close()
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Fatal(err)
			}
		}
		for range 2000 {
			ask("/", 0)
		}
		for range 20 {
			ask("/read", PerRequest-1000)
		}
		for range 3 {
			ask("/large", 0)
		}
		transport.CloseIdleConnections()
		if n := s.count(Noise); n > 0 {
			t.Errorf("%d connections were closed for noise", n)
		}
	}
}

// A body that the handler has not read is discarded after it, and the answer comes.
func TestUnreadBodiesAreAnswered(t *testing.T) {
	s := open(t, Limits{Connections: 10, Unproven: long}, false)
	c := s.dial()
	for _, size := range []int{200 << 10, 1, readAfterHandler - 1} {
		if _, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size)); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%d bytes: %v, %v", size, res, err)
		}
	}
	if n := s.count(Noise); n > 0 {
		t.Errorf("%d connections were closed for noise", n)
	}
}

// Waiting pays for the pings that keep a connection alive.
func TestNoiseIsForgotten(t *testing.T) {
	at := time.Unix(1, 0)
	n := noise{left: NoiseAtOnce, at: at}
	for range 100_000 {
		if at = at.Add(time.Second); n.read(noisePerSecond, at) {
			t.Fatal("a ping now and then is too much")
		}
	}
	if n.read(NoiseAtOnce-noisePerSecond, at) || !n.read(1, at) {
		t.Errorf("%d bytes are left", n.left)
	}
}
