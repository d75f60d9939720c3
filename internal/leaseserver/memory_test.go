package leaseserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
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
	g.server.phases = phases{header: long, read: long, write: long, idle: long, refused: 50 * time.Millisecond}
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
	await.Eventually(g.t, "the half bodies are counted", func() bool { return g.server.bodies.memory().Reserved == 3*size })
	refused := post("{")
	answer, err := io.ReadAll(refused) // the server does not wait for the rest, as it does for the others'
	if !strings.HasPrefix(string(answer), "HTTP/1.1 503 ") || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one more: %q, %v", answer, err)
	}
	if n := g.server.bodies.memory().Reserved; n != 3*size {
		t.Errorf("the others had to go as well: they hold %d bytes", n)
	}
	if res, err := ask(t, dial(t, address), "POST /lease"); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("a small one: %v, %v", res, err)
	}
	for _, conn := range half {
		_ = conn.Close()
	}
	await.Eventually(g.t, "they are gone", func() bool { return g.server.bodies.memory().Reserved == 0 })
	if got := status(post("{}" + strings.Repeat(" ", size-2))); got != http.StatusOK {
		t.Errorf("a whole one: status %d", got)
	}
}

// The memory bounds the connections, and one address leaves some to others.
func TestConnectionsFollowFromMemory(t *testing.T) {
	for _, test := range []struct {
		memory                 int64
		most, each, want, from int
		waiters                int64
	}{
		{0, 16384, 0, 16384, 12288, 4096},
		{256 << 20, 16384, 0, 4096, 3072, 2048},
		{1 << 30, 16384, 8192, 16384, 8192, 4096},
		{256 << 20, 100, 0, 100, 75, 50},
		{1, 9, 0, 1, 1, 0},
	} {
		o := Listening{MemoryLimit: test.memory, MaxConnections: test.most, PerAddress: test.each}
		if all, one := o.connections(), o.perAddress(); all != test.want || one != test.from {
			t.Errorf("%+v: %d connections, %d of one address", test, all, one)
		}
		if waiters := o.waiters(); waiters != test.waiters {
			t.Errorf("%+v: %d wait", test, waiters)
		}
	}
}
