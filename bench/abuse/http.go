//go:build linux

package abuse

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// onAdmin are the attacks on the admin listener. The innocent asks the daemon's socket,
// and is probed: its new connections also ask for /readyz. Attackers who hold connections
// have one address: a few of them could take all places.
var onAdmin = []attack{
	{name: "admin: idle after an answer", users: 1, begin: func(a *attacker) { a.keep(5300, a.admin, a.askAndIdle("/healthz")) }},
	{name: "admin: silent connections", users: 1, quiet: true, begin: func(a *attacker) { a.keep(18_000, a.admin, untilEnd) }},
	{name: "admin: slow heads", users: 1, begin: func(a *attacker) { a.keep(300, a.admin, a.slowly("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")) }},
	{name: "admin: answers never read", users: 1, begin: func(a *attacker) { a.keep(300, a.admin, a.unreadPages("/metrics", "")) }},
	{name: "admin: requests on end", users: 4, begin: func(a *attacker) { a.keep(16, a.admin, a.pourPages("/metrics", "")) }},
	{name: "admin: connections that come and go", users: 4, begin: func(a *attacker) { a.keep(32, a.admin, a.onePage) }},
	{name: "admin: garbage", users: 2, begin: func(a *attacker) { a.keep(64, a.admin, a.garbage) }},
}

// onServer are the attacks on the lease server, by peers without and with a credential of
// another tenant.
var onServer = []attack{
	{name: "server: silent connections", users: 1, quiet: true, begin: func(a *attacker) { a.keep(4100, a.server, untilEnd) }},
	{name: "server: half a handshake", users: 1, begin: func(a *attacker) { a.keep(4100, a.server, a.halfHandshake) }},
	{name: "server: idle after an answer", users: 2, begin: func(a *attacker) { a.keep(1000, a.secure, a.askAndIdle("/healthz")) }},
	{name: "server: slow heads", users: 4, begin: func(a *attacker) { a.keep(500, a.secure, a.slowly("GET /leases HTTP/1.1\r\nHost: localhost\r\nX: ")) }},
	{name: "server: slow bodies", users: 4, begin: func(a *attacker) { a.keep(500, a.secure, a.slowly(post("/lease", 100_000))) }},
	{name: "server: half bodies", users: 2, begin: func(a *attacker) { a.keep(1000, a.secure, a.halfBody) }},
	{name: "server: answers never read", users: 4, begin: func(a *attacker) { a.keep(500, a.secure, a.unreadPages("/leases", hostileToken)) }},
	{name: "server: the page never read", users: 4, begin: func(a *attacker) { a.keep(500, a.secure, a.unreadPages("/", "")) }},
	{name: "server: lock waiters", users: 4, begin: func(a *attacker) { a.keep(600, a.secure, a.waitOnServer) }},
	{name: "server: keys of sequences", users: 4, begin: func(a *attacker) {
		a.keep(16, a.secure, a.keysOnServer("/v1/sequences/%s/next", `{"request_id": "%d"}`))
	}},
	{name: "server: locks of a day", users: 4, begin: func(a *attacker) {
		a.keep(16, a.secure, a.keysOnServer("/v1/locks/%s/acquire", `{"ttl_ms": 86400000, "request_id": "%d"}`))
	}},
	{name: "server: garbage", users: 2, begin: func(a *attacker) { a.keep(64, a.secure, a.garbage) }},
	{name: "server: HTTP/2 all the same", users: 4, begin: func(a *attacker) { a.keep(64, a.secure, a.pour(func(int) []byte { return []byte(http2) })) }},
}

// http2 begins HTTP/2, which no server here speaks, and sends a ping.
const http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"

// page is a GET request, with a token or without.
func page(path, token string) string {
	credential := ""
	if token != "" {
		credential = "Authorization: Bearer " + token + "\r\n"
	}
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, credential)
}

// post is a POST request with the hostile tenant's token, whose body has this size.
func post(path string, size int) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		path, hostileToken, size)
}

// askAndIdle reads one answer, and waits.
func (a *attacker) askAndIdle(path string) func(net.Conn) { return a.oneAnswer(page(path, ""), true) }

func (a *attacker) onePage(conn net.Conn) { a.oneAnswer(page("/readyz", ""), false)(conn) }

func (a *attacker) oneAnswer(request string, idle bool) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := io.WriteString(conn, request); err != nil {
			return
		}
		a.now.asked.Add(1)
		if idle {
			untilEnd(conn)
			return
		}
		_, _ = conn.Read(make([]byte, 1024))
	}
}

// slowly sends the beginning of something, and the rest, which never ends, a byte at a time.
func (a *attacker) slowly(beginning string) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := io.WriteString(conn, beginning); err == nil {
			a.trickle(conn)
		}
	}
}

func (a *attacker) trickle(conn net.Conn) {
	a.now.asked.Add(1)
	const pause = 500 * time.Millisecond
	for range time.Tick(pause) {
		if _, err := io.WriteString(conn, "x"); err != nil {
			return
		}
	}
}

// halfBody sends most of a body.
func (a *attacker) halfBody(conn net.Conn) {
	const size = 110_000
	if _, err := io.WriteString(conn, post("/lease", size)+`{"meta": "`+strings.Repeat("x", size-100)); err == nil {
		a.now.asked.Add(1)
		untilEnd(conn)
	}
}

// unreadPages asks again and again, and reads nothing.
func (a *attacker) unreadPages(path, token string) func(net.Conn) {
	request := []byte(page(path, token))
	return func(conn net.Conn) { a.ask(conn, func(int) []byte { return request }) }
}

func (a *attacker) pourPages(path, token string) func(net.Conn) {
	request := []byte(page(path, token))
	return a.pour(func(int) []byte { return request })
}

// halfHandshake begins one of TLS.
func (a *attacker) halfHandshake(conn net.Conn) {
	hello := &firstWrite{Conn: conn}
	_ = tls.Client(hello, unchecked()).Handshake()
	untilEnd(conn)
}

// firstWrite lets half of the first message through, and then says that all is over.
type firstWrite struct{ net.Conn }

func (f *firstWrite) Write(b []byte) (int, error) {
	n, _ := f.Conn.Write(b[:len(b)/2])
	return n, io.ErrClosedPipe
}

// waitOnServer waits for a lock that another attacker holds.
func (a *attacker) waitOnServer(conn net.Conn) {
	const body = `{"ttl_ms": 86400000, "wait_ms": 30000}`
	a.answers(conn, func(int) string { return post(lockPath("wanted", "/acquire"), len(body)) + body })
}

// keysOnServer asks for a new key each time.
func (a *attacker) keysOnServer(path, body string) func(net.Conn) {
	return func(conn net.Conn) {
		a.answers(conn, func(n int) string {
			text := fmt.Sprintf(body, n)
			return post(fmt.Sprintf(path, a.longKey(n)), len(text)) + text
		})
	}
}

// answers sends requests, each after the answer to the one before.
func (a *attacker) answers(conn net.Conn, next func(n int) string) {
	reader := bufio.NewReader(conn)
	for n := 0; ; n++ {
		if _, err := io.WriteString(conn, next(n)); err != nil {
			return
		}
		a.now.asked.Add(1)
		answer, err := http.ReadResponse(reader, nil)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			return
		}
		if answer.StatusCode == http.StatusTooManyRequests {
			time.Sleep(shortPause)
		}
	}
}
