package http

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/door/doortest"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

func start(t testing.TB, o doortest.Options) *doortest.Rig {
	t.Helper()
	return doortest.Start(t, o, func(ctx context.Context, l net.Listener, s *daemon.Server) error {
		return Serve(ctx, l, s.NewDoor("http", Refusal), "", zap.NewNop())
	})
}

// client asks over connections that it keeps.
func client(t testing.TB, r *doortest.Rig) *http.Client {
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial(r.Network, r.Address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: doortest.Patience}
}

// answer is a response, read.
type answer struct {
	*http.Response
	body string
}

func fetch(t testing.TB, c *http.Client, method, path string, header ...string) answer {
	t.Helper()
	request, err := http.NewRequest(method, "http://localhost"+path, nil)
	must.Succeed(t, err)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := c.Do(request)
	must.Succeed(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must.Succeed(t, err)
	return answer{response, string(body)}
}

func TestAnswers(t *testing.T) {
	r := start(t, doortest.Options{Services: []string{"orders"}})
	c := client(t, r)
	const id, external = `\d{18}`, `[0-9A-Za-z_-]{11}`
	asJSON := []string{"Accept", "application/json"}
	for _, test := range []struct {
		path   string
		header []string
		want   string
	}{
		{"/id", nil, id},
		{"/ids?n=2&format=int", nil, id + "\n" + id},
		{"/id?format=int", nil, id},
		{"/id?format=string&regular_only=true&timeout_ms=100", nil, id},
		{"/id?format=external", nil, external},
		{"/ids", nil, id},
		{"/ids?n=3", nil, id + "\n" + id + "\n" + id},
		{"/services/orders/id", nil, id},
		{"/services/default/ids?n=2", nil, id + "\n" + id},
		{"/id", asJSON, `{"id":"` + id + `"}`},
		{"/ids?n=2", asJSON, `{"ids":\["` + id + `","` + id + `"\]}`},
		{"/ids?n=1", asJSON, `{"ids":\["` + id + `"\]}`},
		{"/services/orders/ids?n=2&format=external", asJSON, `{"ids":\["` + external + `","` + external + `"\]}`},
		{"/id", []string{"Accept", "text/html, Application/JSON;q=0.9"}, `{"id":"` + id + `"}`},
		{"/id", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, id}, // a link that was followed
	} {
		for _, method := range []string{"POST", "GET"} {
			got := fetch(t, c, method, test.path, test.header...)
			kind := map[bool]string{true: "application/json", false: "text/plain; charset=utf-8"}[strings.HasPrefix(test.want, "{")]
			if got.StatusCode != 200 || !regexp.MustCompile("^"+test.want+"$").MatchString(got.body) || got.Header.Get("Content-Type") != kind {
				t.Errorf("%s %s %v: %d %s %q", method, test.path, test.header, got.StatusCode, got.Header.Get("Content-Type"), got.body)
			}
			notKept(t, got)
		}
	}
	// A GET may have parameters that make a cache ask.
	for _, query := range []string{"?_=1732838400", "?_=1&_=2&format=int", "?cache-buster"} {
		if got := fetch(t, c, "GET", "/id"+query); got.StatusCode != 200 {
			t.Errorf("%s: %d %s", query, got.StatusCode, got.body)
		}
	}
}

// notKept checks that no cache keeps the answer, or shares it.
func notKept(t *testing.T, got answer) {
	t.Helper()
	h := got.Header
	if h.Get("Cache-Control") != "no-store" || h.Get("Vary") != "*" || h.Get("ETag")+h.Get("Last-Modified")+h.Get("Expires")+h.Get("Age") != "" {
		t.Errorf("a cache may keep it: %v", h)
	}
}

// TestBodies: a body that says nothing is welcome, another one is refused, in any form; the
// connection goes on.
func TestBodies(t *testing.T) {
	r := start(t, doortest.Options{})
	for _, test := range []struct {
		header, body string
		status       int
	}{
		{"Content-Length: 0", "", 200},
		{"Content-Type: application/json\r\nContent-Length: 4", "{}\r\n", 200},
		{"Transfer-Encoding: chunked", "1\r\n[\r\n1\r\n]\r\n0\r\n\r\n", 200},
		{"Expect: 100-continue\r\nContent-Length: 4", "null", 200},
		{"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 3", "n=5", 400},
		{"Content-Type: application/json\r\nContent-Length: 7", `{"n":5}`, 400},
		{"Transfer-Encoding: chunked", "12\r\n" + `{"n":5           }` + "\r\n0\r\n\r\n", 400},
		{"Content-Length: 300000", strings.Repeat(" ", 300000), 400},
		{"Expect: 100-continue\r\nContent-Length: 300000", "", 400}, // which is not asked for
		{"Transfer-Encoding: chunked", "x\r\n\r\n", 400},
	} {
		for _, method := range []string{"POST", "GET"} {
			nc := r.Dial(t)
			fmt.Fprintf(nc, "%s /id HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", method, test.header, test.body)
			in := bufio.NewReader(nc)
			response, err := http.ReadResponse(in, nil)
			if err == nil && response.StatusCode == 100 {
				response, err = http.ReadResponse(in, nil)
			}
			must.Succeed(t, err)
			body, err := io.ReadAll(response.Body)
			must.Succeed(t, err)
			if response.StatusCode != test.status || test.status == 400 && !strings.Contains(string(body), "body") {
				t.Errorf("%s %s: %d %s", method, test.header, response.StatusCode, body)
			}
		}
	}
}

func TestProblems(t *testing.T) {
	r := start(t, doortest.Options{Provider: "none:", Fallback: config.FallbackNone})
	c := client(t, r)
	for _, test := range []struct {
		method, path string
		status       int
		code, detail string
	}{
		{"GET", "/id", 503, "NO_PROVIDER", ""},
		{"GET", "/services/orders/id", 404, "UNKNOWN_SERVICE", `there is no service "orders"; there are default`},
		{"GET", "/ids?n=007", 400, "INVALID_PARAMS", "n is a number from 1 to 65536"},
		{"GET", "/ids?n=%2B5", 400, "INVALID_PARAMS", "n is a number from 1 to 65536"},
		{"GET", "/ids?n=1&n=2", 400, "INVALID_PARAMS", "there 2 times"},
		{"GET", "/ids?n=0", 400, "INVALID_PARAMS", "n is a number from 1 to 65536"},
		{"GET", "/ids?n=65537", 400, "INVALID_PARAMS", "65537"},
		{"GET", "/ids?n=x", 400, "INVALID_PARAMS", `"x"`},
		{"GET", "/id?n=1", 400, "INVALID_PARAMS", "there is no parameter"},
		{"GET", "/id?format=hex", 400, "INVALID_PARAMS", "there are int, string, external"},
		{"GET", "/id?timeout_ms=3600001", 400, "INVALID_PARAMS", "timeout_ms"},
		{"GET", "/id?regular_only=yes", 400, "INVALID_PARAMS", "regular_only"},
		{"GET", "/id?%zz", 400, "INVALID_PARAMS", "the query cannot be read"},
		{"GET", "/", 404, "NOT_FOUND", "/ids?n=COUNT"},
		{"GET", "/stats", 404, "NOT_FOUND", ""},
		{"POST", "/id", 503, "NO_PROVIDER", ""},
		{"POST", "/id?_=1", 400, "INVALID_PARAMS", "there is no parameter"},
		{"GET", "/ids?_=1&n=0", 400, "INVALID_PARAMS", "n is a number"},
		{"PUT", "/id", 405, "METHOD_NOT_ALLOWED", "POST and GET"},
		{"DELETE", "/ids", 405, "METHOD_NOT_ALLOWED", ""},
	} {
		got := fetch(t, c, test.method, test.path)
		var p problem.Problem
		if err := json.Unmarshal([]byte(got.body), &p); err != nil {
			t.Fatalf("%s: %v: %s", test.path, err, got.body)
		}
		if got.StatusCode != test.status || p.Status != test.status || string(p.Code) != test.code || !strings.Contains(p.Detail, test.detail) ||
			got.Header.Get("Content-Type") != problem.MediaType || (got.Header.Get("Retry-After") != "") != (test.status == 503) {
			t.Errorf("%s %s: %d %v %s", test.method, test.path, got.StatusCode, got.Header, got.body)
		}
		notKept(t, got)
	}
	got := fetch(t, c, "HEAD", "/id")
	if got.StatusCode != 405 || got.Header.Get("Allow") != "GET, POST" {
		t.Errorf("HEAD: %d %v", got.StatusCode, got.Header)
	}
	notKept(t, got)
}

// TestIncreasing: a large answer comes whole, and IDs increase from answer to answer.
func TestIncreasing(t *testing.T) {
	for _, tcp := range []bool{false, true} {
		r := start(t, doortest.Options{TCP: tcp})
		c := client(t, r)
		c.Transport.(*http.Transport).DisableKeepAlives = tcp
		last := int64(0)
		for _, n := range []int{1, 2, 5000, 1} {
			lines := strings.Split(fetch(t, c, "GET", fmt.Sprintf("/ids?n=%d", n)).body, "\n")
			if len(lines) != n {
				t.Fatalf("%d lines instead of %d", len(lines), n)
			}
			for _, text := range lines {
				id, err := strconv.ParseInt(text, 10, 64)
				if err != nil || id <= last {
					t.Fatalf("%d after %d, %v", id, last, err)
				}
				last = id
			}
		}
	}
}

// TestNames: on a loopback address it answers to this host's names only, so that no page
// of another site reads IDs.
func TestNames(t *testing.T) {
	r := start(t, doortest.Options{TCP: true})
	for head, want := range map[string]int{
		"1.1\r\nHost: localhost": 200, "1.1\r\nHost: 127.0.0.1": 200, "1.1\r\nHost: evil.example": http.StatusMisdirectedRequest,
		"1.0": 200, "1.0\r\nHost:": 200, "1.1\r\nHost:": 200, "1.0\r\nHost: evil.example": http.StatusMisdirectedRequest,
	} {
		nc := r.Dial(t)
		fmt.Fprintf(nc, "GET /id HTTP/%s\r\n\r\n", head)
		response, err := http.ReadResponse(bufio.NewReader(nc), nil)
		must.Succeed(t, err)
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%q: %d, want %d", head, response.StatusCode, want)
		}
	}
}

// TestWaits: as NextID, within max_in_flight; and a peer that is gone waits for nothing.
func TestWaits(t *testing.T) {
	fake := clock.NewFake(snowflake.DefaultEpochMS + 1000)
	o := doortest.Options{Clock: fake}
	o.MaxInFlight = 1
	r := start(t, o)
	c := client(t, r)
	fetch(t, c, "GET", fmt.Sprintf("/ids?n=%d", 1<<snowflake.DefaultBitSeq))
	waits := r.Dial(t)
	fmt.Fprint(waits, "GET /id?timeout_ms=3600000 HTTP/1.1\r\nHost: x\r\n\r\n")
	await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
	if got := fetch(t, c, "GET", "/id"); got.StatusCode != 503 || !strings.Contains(got.body, "max_in_flight") {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	if got := fetch(t, c, "GET", "/id?timeout_ms=0"); got.StatusCode != 503 || !strings.Contains(got.body, "TIMEOUT") {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	_ = waits.Close()
	await.Eventually(t, "its place is free", func() bool { return r.Server.Status().InFlight == 0 })
	answered := make(chan answer)
	go func() { answered <- fetch(t, c, "GET", "/id?timeout_ms=3600000") }()
	await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
	fake.Advance(time.Millisecond)
	if got := <-answered; got.StatusCode != 200 {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

// A connection that is evicted gives back its memory, although its request waits for IDs.
func TestEvictedRequestsEnd(t *testing.T) {
	o := doortest.Options{Clock: clock.NewFake(snowflake.DefaultEpochMS + 1000)}
	o.AllowUIDs = []uint32{uint32(os.Getuid())}
	o.MaxConnections, o.MaxInFlight = 10, 10
	r := start(t, o)
	fetch(t, client(t, r), "GET", fmt.Sprintf("/ids?n=%d", 1<<snowflake.DefaultBitSeq))
	// So many that net/http, which has read a part, does not notice that the connection ends.
	fmt.Fprint(r.Dial(t), strings.Repeat("GET /ids?n=5000&timeout_ms=3600000 HTTP/1.1\r\nHost: x\r\n\r\n", 200))
	await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
	r.Server.Allow([]uint32{uint32(os.Getuid()) + 1}, nil)
	await.Eventually(t, "nothing is left of it", func() bool {
		s := r.Server.Status()
		return s.InFlight == 0 && s.Connections == 0 && s.Memory.Reserved == 0
	})
}

func TestRefusals(t *testing.T) {
	o := doortest.Options{}
	o.MaxConnections = 1
	r := start(t, o)
	c := client(t, r)
	fetch(t, c, "GET", "/id")
	if got := fetch(t, client(t, r), "GET", "/id"); got.StatusCode != 503 || !strings.Contains(got.body, "OVERLOADED") || !got.Close ||
		got.Header.Get("Retry-After") == "" || got.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v %s", got.StatusCode, got.Header, got.body)
	}
	c.CloseIdleConnections()
	await.Eventually(t, "a place is free", func() bool { return r.Server.Status().Connections == 0 })
	fetch(t, client(t, r), "GET", "/id")

	o = doortest.Options{}
	o.AllowUIDs = []uint32{uint32(os.Getuid()) + 1}
	if got := fetch(t, client(t, start(t, o)), "GET", "/id"); got.StatusCode != 403 || !strings.Contains(got.body, "PERMISSION_DENIED") {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

// TestStop: a request under way is answered; a request that outlasts the drain is told so.
func TestStop(t *testing.T) {
	for _, timeout := range []time.Duration{doortest.Patience, time.Millisecond} {
		fake := clock.NewFake(snowflake.DefaultEpochMS + 1000)
		o := doortest.Options{Clock: fake}
		o.DrainTimeout = timeout
		r := start(t, o)
		c := client(t, r)
		fetch(t, c, "GET", fmt.Sprintf("/ids?n=%d", 1<<snowflake.DefaultBitSeq))
		answered := make(chan answer)
		go func() { answered <- fetch(t, c, "GET", "/id") }()
		await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
		r.Ending()
		want := 503
		if timeout == doortest.Patience {
			want = 200
			fake.Advance(time.Millisecond)
		}
		if got := <-answered; got.StatusCode != want {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
		r.Stop()
	}
}

// FuzzRequest: after any bytes of a peer, another one is served, and the answers are HTTP.
func FuzzRequest(f *testing.F) {
	r := start(f, doortest.Options{Services: []string{"orders"}})
	c := client(f, r)
	for _, seed := range []string{
		"GET /id HTTP/1.1\r\nHost: x\r\n\r\n", "GET /ids?n=3&format=external HTTP/1.0\r\n\r\n",
		"GET /services/orders/ids?n=2 HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\nGET /id HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /id HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc", "GET /services/%2f/id HTTP/1.1\r\nHost: x\r\n\r\n",
		"get id\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /ids?n=99999999999999999999 HTTP/1.1\r\nHost: x\r\n\r\n", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		nc := r.Dial(t)
		_, _ = nc.Write(sent)
		_ = nc.(*net.UnixConn).CloseWrite()
		got, _ := io.ReadAll(nc) // a reset is no fault
		if len(got) > 0 && !bytes.HasPrefix(got, []byte("HTTP/1.")) {
			t.Errorf("%q is answered with %q", sent, got)
		}
		if got := fetch(t, c, "GET", "/id"); got.StatusCode != 200 {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	})
}

// A page of another site gets no ID, with the listener on any address.
func TestPagesOfOtherSites(t *testing.T) {
	r := start(t, doortest.Options{})
	got := fetch(t, client(t, r), "GET", "/id", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors")
	if got.StatusCode != http.StatusForbidden || !strings.Contains(got.body, "PERMISSION_DENIED") {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}
