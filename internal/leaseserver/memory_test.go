package leaseserver

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/guard"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record/memory"
)

// Bodies that are being read have a part of the memory, and one tenant not all of it.
// Small bodies always fit.
func TestBodiesShareMemory(t *testing.T) {
	var b bodies
	const unit = 10 * smallBody
	b.share(8 * 4 * unit)
	var taken []func()
	take := func(tenant string, n int64, fits bool) {
		t.Helper()
		give, err := b.take(tenant, n)
		if (err == nil) != fits {
			t.Fatalf("tenant %s, %d bytes: %v", tenant, n, err)
		}
		if fits {
			taken = append(taken, give)
		}
	}
	for range 3 {
		take("a", unit, true)
	}
	take("a", unit, false)
	take("b", unit, true)
	take("c", unit, false)
	take("c", smallBody, true)
	for _, give := range taken {
		give()
	}
	if b.memory().Reserved != 0 || len(b.of) != 0 {
		t.Errorf("%d bytes are left, and %v", b.memory().Reserved, b.of)
	}
	take("c", 3*unit, true)
}

// Half bodies fill no more than their part; small requests are answered meanwhile, and
// the next large one when the others have ended.
func TestHalfBodies(t *testing.T) {
	g := newRig(t, nil)
	const size = 10 * smallBody
	address := g.listening(Listening{MemoryLimit: 8 * 4 * size})
	post := func(body string) net.Conn {
		conn := dial(t, address)
		head := fmt.Sprintf("POST /lease HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", size)
		if _, err := io.WriteString(conn, head+body); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	status := func(conn net.Conn) int {
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode
	}
	var half []net.Conn
	for range 3 {
		half = append(half, post("{"))
	}
	g.eventually("the half bodies are counted", func() bool { return g.server.bodies.memory().Reserved == 3*size })
	if got := status(post("{")); got != http.StatusServiceUnavailable {
		t.Errorf("one more: status %d", got)
	}
	if res, err := ask(t, dial(t, address), "POST /lease"); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("a small one: %v, %v", res, err)
	}
	for _, conn := range half {
		_ = conn.Close()
	}
	g.eventually("they are gone", func() bool { return g.server.bodies.memory().Reserved == 0 })
	if got := status(post("{}" + strings.Repeat(" ", size-2))); got != http.StatusOK {
		t.Errorf("a whole one: status %d", got)
	}
}

// The memory bounds the connections, and one address leaves some to others.
func TestConnectionsFollowFromMemory(t *testing.T) {
	for _, test := range []struct {
		memory                 int64
		most, each, want, from int
		requests               int
		waiters, shared        int64
	}{
		{0, 16384, 8192, 16384, 8192, 0, 4096, 0},
		{256 << 20, 16384, 8192, 4096, 3072, 2048, 1536, 384},
		{1 << 30, 16384, 8192, 16384, 8192, 8192, 4096, 3072},
		{256 << 20, 100, 0, 100, 0, 2048, 50, 1497},
		{1, 9, 9, 1, 1, 100, 0, 75},
	} {
		o := Listening{MemoryLimit: test.memory, MaxConnections: test.most, PerAddress: test.each}
		if all, one := o.connections(), o.perAddress(); all != test.want || one != test.from {
			t.Errorf("%+v: %d connections, %d of one address", test, all, one)
		}
		if requests, waiters, shared := o.requests(), o.waiters(), o.shared(); requests != test.requests || waiters != test.waiters || shared != test.shared {
			t.Errorf("%+v: %d requests, %d wait, %d share connections", test, requests, waiters, shared)
		}
	}
}

// certificate is a TLS configuration for a server, with a certificate of no authority.
func certificate() *tls.Config {
	other := httptest.NewTLSServer(nil)
	defer other.Close()
	return &tls.Config{Certificates: other.TLS.Certificates}
}

// A proxy that sends many requests over one connection while the store is slow is refused some,
// and keeps its connection; locks can be kept up meanwhile.
func TestSharedConnectionsAreRefusedFirst(t *testing.T) {
	g, store := slowRig(t, func(g *rig) { g.keep(lock.OnRecords(memory.New(g.clock.Load))) })
	o := Listening{MemoryLimit: 1, TLS: certificate()} // 1 connection
	address := g.listening(o)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, MaxConnsPerHost: 1}, Timeout: long}
	t.Cleanup(client.CloseIdleConnections)
	ask := func(method, path, body string) (status int, p problem.Problem) {
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+address+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, p
		}
		r.Header.Set("Content-Type", "application/json")
		res, err := client.Do(r)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return 0, p
		}
		defer res.Body.Close()
		_ = json.NewDecoder(res.Body).Decode(&p) // of refusals
		return res.StatusCode, p
	}
	if status, _ := ask("GET", "/leases", ""); status != http.StatusOK {
		t.Fatal(status)
	}
	places := int(o.shared() - o.shared()/3)
	answers := make(chan int, maxStreams)
	ask1 := func() { status, _ := ask("POST", "/lease", ""); answers <- status }
	for range 1 + places {
		go ask1()
		<-store.entered
	}
	if status, p := ask("POST", "/lease", ""); status != http.StatusServiceUnavailable || p.Code != problem.Overloaded || !strings.Contains(p.Detail, "memory_limit") {
		t.Errorf("one more: status %d, %+v", status, p)
	}
	if all := g.options.Quotas.Recent(); len(all) != 1 || all[0].Refusal != (quota.Refusal{Quota: "memory_limit", Limit: int64(places)}) {
		t.Errorf("the book has %+v", all)
	}
	if status, _ := ask("POST", "/v1/locks/k/release", "{}"); status != http.StatusConflict {
		t.Errorf("the upkeep of a lock: status %d", status)
	}
	close(store.letGo)
	for range 1 + places {
		if status := <-answers; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
	if n := g.server.shared.Load(); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Limits without a key are in the book, too.
func TestFixedLimitsAreInTheBook(t *testing.T) {
	g := newRig(t, nil)
	conn := tls.Client(dial(t, g.listening(Listening{TLS: certificate()})), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	read := make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(io.Discard, conn) }()
	_, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	for ping := strings.Repeat("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", 100); err == nil; {
		_, err = io.WriteString(conn, ping)
	}
	_ = conn.Close()
	<-read
	want := quota.Refusal{Quota: quota.FixedNoise, Limit: guard.NoiseAtOnce, Whose: "address 127.0.0.1"}
	g.eventually("the noise is in the book", func() bool {
		all := g.options.Quotas.Recent()
		return len(all) == 1 && all[0].Refusal == want
	})
}
