package httpconn

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

func open(t *testing.T, raw string) *Client {
	t.Helper()
	cfg, err := ParseURL(raw)
	must.Succeed(t, err)
	c, err := New(cfg)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func serve(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func ok(w http.ResponseWriter) {
	w.Header().Set("Content-Type", jsonType)
	_, _ = io.WriteString(w, "{}")
}

// cut closes the connection when the request was read.
func cut(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		_ = conn.Close()
	}
}

func refuse(w http.ResponseWriter, p *problem.Problem) {
	w.Header().Set("Content-Type", problem.MediaType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// A segment arrives as it is, behind any path of the server's URL.
func TestPaths(t *testing.T) {
	var got atomic.Value
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.URL.EscapedPath() + " " + r.URL.Path)
		ok(w)
	})
	for segment, want := range map[string]string{
		"a": "/base/x/a/y /base/x/a/y", "a/b": "/base/x/a%2Fb/y /base/x/a/b/y", ".": "/base/x/%2E/y /base/x/./y", "..": "/base/x/%2E%2E/y /base/x/../y",
		"%2F": "/base/x/%252F/y /base/x/%2F/y", "?#": "/base/x/%3F%23/y /base/x/?#/y", "錠": "/base/x/%E9%8C%A0/y /base/x/錠/y", " ": "/base/x/%20/y /base/x/ /y",
	} {
		err := open(t, server+"/base/").Do(t.Context(), Call{Method: "POST", Path: "/x/" + Escape(segment) + "/y", Answer: &struct{}{}, Limit: 100})
		if err != nil || got.Load() != want {
			t.Errorf("%q: %v, %v; want %s", segment, got.Load(), err, want)
		}
	}
}

// refusing is a server that answers with the problem.
func refusing(code problem.Code) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { refuse(w, problem.New(code, "no").After(time.Second)) }
}

func plain(status int, media, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// What the first of two servers answers decides whether the same request goes to the
// second, which then is asked first.
func TestFailover(t *testing.T) {
	for name, test := range map[string]struct {
		first          http.HandlerFunc
		next, nextOnce bool // is the second asked, and also where the call may not be repeated
	}{
		"cut off":           {cut, true, false},
		"overloaded":        {refusing(problem.Overloaded), true, true},
		"its store is away": {refusing(problem.Unavailable), true, false},
		"a proxy's 502":     {plain(502, "text/html", "<h1>Bad gateway</h1>"), true, false},
		"no lease server":   {plain(200, "text/html", "hello"), true, false},
		"half an answer":    {plain(200, jsonType, `{"leases":[`), true, false},
		"unknown token":     {refusing(problem.Unauthenticated), true, true},
		"token without it":  {refusing(problem.Forbidden), true, true},
		"full":              {refusing(problem.NoMachineID), false, false},
		"fenced":            {refusing(problem.Fenced), false, false},
		"conflict":          {refusing(problem.Conflict), false, false},
		"another key":       {refusing(problem.KeyMismatch), true, true},
		"rate limited":      {refusing(problem.RateLimited), false, false},
		"the wrong path":    {plain(404, "text/plain", "404 page not found"), true, true},
		"a redirect":        {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusTemporaryRedirect) }, true, true},
	} {
		for _, once := range []bool{false, true} {
			var mu sync.Mutex
			var seen []string // what each server was sent
			see := func(server string, then http.HandlerFunc) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					mu.Lock()
					seen = append(seen, server+string(b))
					mu.Unlock()
					then(w, r)
				}
			}
			c := open(t, serve(t, see("a", test.first))+","+serve(t, see("b", func(w http.ResponseWriter, _ *http.Request) { ok(w) })))
			call := Call{Method: "POST", Path: "/x", Body: 17, Answer: &struct{}{}, Limit: 100, Once: once}
			err := c.Do(t.Context(), call)
			want, next := []string{"a17"}, test.next && (!once || test.nextOnce)
			if next {
				want = []string{"a17", "b17", "b17"}
				err = errors.Join(err, c.Do(t.Context(), call))
			}
			mu.Lock()
			if (err == nil) != next || !slices.Equal(seen, want) {
				t.Errorf("%s, once %v: %v, and the servers have seen %v", name, once, err, seen)
			}
			mu.Unlock()
		}
	}
}

// A call that may not be repeated is not sent again by the transport either, on the
// connection that is kept.
func TestOnceIsNotRepeated(t *testing.T) {
	var calls atomic.Int64
	c := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) > 1 {
			cut(w, r)
			return
		}
		ok(w)
	}))
	call := Call{Method: "POST", Path: "/x", Answer: &struct{}{}, Limit: 100, Once: true}
	must.Succeed(t, c.Do(t.Context(), call))
	if err := c.Do(t.Context(), call); err == nil || calls.Load() != 2 || Settled(err) != nil {
		t.Errorf("%v; %d requests", err, calls.Load())
	}
}

// TestSettled: a refusal is an answer only if no server can have done it. Else the error
// names every server.
func TestSettled(t *testing.T) {
	busy, failed, held, dropped := serve(t, refusing(problem.Overloaded)), serve(t, refusing(problem.Unavailable)), serve(t, refusing(problem.LockHeld)), serve(t, cut)
	none := "http://127.0.0.1:1"
	for servers, want := range map[string]problem.Code{ // "" = open
		busy: problem.Overloaded, held: problem.LockHeld, busy + "," + held: problem.LockHeld, dropped + "," + held: problem.LockHeld,
		none + "," + busy: problem.Overloaded,
		failed:            "", dropped: "", dropped + "," + busy: "", failed + "," + busy: "", busy + "," + failed: "", none: "",
	} {
		err := open(t, servers).Do(t.Context(), Call{Method: "POST", Path: "/x"})
		p := Settled(err)
		if err == nil || (p == nil) != (want == "") || p != nil && p.Code != want {
			t.Errorf("%s: %v, settled %v, want %q", servers, err, p, want)
		}
		for _, server := range strings.Split(servers, ",") {
			if want == "" && !strings.Contains(err.Error(), server) {
				t.Errorf("the error does not name %s: %v", server, err)
			}
		}
	}
	if Settled(nil) != nil || Settled(errors.New("x")) != nil {
		t.Error("something is settled that is no answer")
	}
}

// A credential goes where the URL says, and is read for each call.
func TestTokenFile(t *testing.T) {
	var got atomic.Value
	var calls atomic.Int64
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		got.Store(r.Header.Get("Authorization"))
		ok(w)
	})
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("first-token\n")
	c := open(t, server+"?token_file="+path)
	call := Call{Method: "POST", Path: "/x"}
	for _, token := range []string{"first-token", "second-token"} {
		write(token)
		if err := c.Do(t.Context(), call); err != nil || got.Load() != "Bearer "+token {
			t.Errorf("%v, %v", got.Load(), err)
		}
	}
	elsewhere := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, server+r.URL.Path, http.StatusTemporaryRedirect)
	})
	before := calls.Load()
	if err := open(t, elsewhere+"?token_file="+path).Do(t.Context(), call); err == nil || !strings.Contains(err.Error(), "redirects are not followed") || calls.Load() != before {
		t.Errorf("a redirect: %v", err)
	}
	for _, bad := range []string{"", "two\nlines", "two words", strings.Repeat("x", 20_000)} {
		write(bad)
		if err := c.Do(t.Context(), call); err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "two") || calls.Load() != before {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	cfg, err := ParseURL(server + "?token_file=" + path + "-missing")
	must.Succeed(t, err)
	if _, err := New(cfg); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestPatienceIsNotShared: what a server may take on purpose is not divided among
// the servers.
func TestPatienceIsNotShared(t *testing.T) {
	for _, test := range []struct {
		left, patience time.Duration
		servers        int
		want           time.Duration
	}{
		{9, 0, 3, 3}, {9, 0, 1, 9}, {29, 20, 3, 23}, {29, 20, 1, 29}, {20, 20, 2, 20}, {10, 20, 2, 20},
	} {
		if got := share(test.left, test.patience, test.servers); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

// A server that hangs has its share of the time and no more, and Close ends the call.
func TestHangingServer(t *testing.T) {
	t.Parallel() // it waits
	entered := make(chan struct{}, 2)
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		entered <- struct{}{}
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // half of it for each server
	defer cancel()
	var second atomic.Bool
	next := serve(t, func(w http.ResponseWriter, _ *http.Request) { second.Store(true); ok(w) })
	if err := open(t, server+","+next).Do(ctx, Call{Method: "POST", Path: "/x"}); err != nil || !second.Load() {
		t.Errorf("a server that hangs took all of the time: %v", err)
	}
	<-entered
	c := open(t, server)
	done := make(chan error, 1)
	go func() { done <- c.Do(context.Background(), Call{Method: "POST", Path: "/x"}) }()
	<-entered
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := c.Do(t.Context(), Call{Method: "GET", Path: "/x"}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	cancel()
	if err := open(t, server).Do(ctx, Call{Method: "GET", Path: "/x"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	cfg, err := ParseURL("https://a:1,b:2/x?token_file=/t")
	if err != nil || cfg.Names() != "https://a:1,https://b:2/x" || strings.Contains(cfg.Names(), "token") {
		t.Errorf("%s, %v", cfg.Names(), err)
	}
}

// Which answers mean that an operator has to mend something. An outage is none.
func TestStray(t *testing.T) {
	const html = "text/html"
	for name, test := range map[string]struct {
		answer     http.HandlerFunc
		is, unsure bool
		says       string
	}{
		"404":           {plain(404, html, "<h1>404</h1>"), true, false, "%2F"},
		"405":           {plain(405, html, "<h1>405</h1>"), true, false, "%2F"},
		"400":           {plain(400, "text/plain", "bad request"), true, false, "bad request"},
		"403":           {plain(403, html, ""), true, false, "forbids"},
		"413":           {plain(413, html, ""), true, false, "112 KiB"},
		"421":           {plain(421, "text/plain", ""), true, false, "localhost"},
		"another key":   {refusing(problem.KeyMismatch), true, false, "%2F"},
		"another path":  {refusing(problem.NotFound), true, false, "%2F"},
		"no method":     {refusing(problem.MethodNotAllowed), true, false, "%2F"},
		"a login page":  {plain(200, html, "<h1>log in</h1>"), true, true, "login page"},
		"408":           {plain(408, html, ""), false, false, "408"},
		"429":           {plain(429, html, ""), false, false, "429"},
		"502":           {plain(502, html, ""), false, false, "502"},
		"503":           {plain(503, html, ""), false, false, "503"},
		"504":           {plain(504, html, ""), false, false, "504"},
		"cut off":       {cut, false, false, ""},
		"not a key":     {refusing(problem.InvalidRequest), false, false, ""},
		"unknown token": {refusing(problem.Unauthenticated), true, false, ""},
		"no scope":      {refusing(problem.Forbidden), true, false, ""},
		"no store":      {refusing(problem.NotSupported), true, false, ""},
	} {
		err := open(t, serve(t, test.answer)).Do(t.Context(), Call{Method: "POST", Path: "/x", Answer: &struct{}{}, Limit: 100})
		is, unsure := Stray(err)
		if err == nil || is != test.is || unsure != test.unsure || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "<h1>") {
			t.Errorf("%s: %v, %v: %v", name, is, unsure, err)
		}
	}
	// A call without an answer, such as the release of a lease, was not carried out by a login page.
	for media, want := range map[string]bool{"text/html; charset=utf-8": true, "text/plain": false, "": false} {
		err := open(t, serve(t, plain(200, media, ""))).Do(t.Context(), Call{Method: "DELETE", Path: "/x"})
		if is, unsure := Stray(err); is != want || unsure != want || (err != nil) != want {
			t.Errorf("%q: %v, %v: %v", media, is, unsure, err)
		}
	}
}
