package httplease_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/httplease"
	"github.com/kazahana/kazahana/internal/provider/memory"
)

func TestParseURL(t *testing.T) {
	for raw, want := range map[string]string{
		"http://127.0.0.1:7464":                           "http://127.0.0.1:7464",
		"http://a:1,http://b:2":                           "http://a:1,http://b:2",
		"https://a:1,b:2?token_file=/t":                   "https://a:1,https://b:2",
		"https://a/base/,https://a/other?ca_file=/c":      "https://a/base,https://a/other",
		"https://[::1]:7464?cert_file=/c&key_file=/k":     "https://[::1]:7464",
		"http+unix:/run/l.sock":                           "http+unix:/run/l.sock",
		"HTTP+Unix:///run/a%20b%3F.sock?token_file=/t":    "http+unix:/run/a%20b%3F.sock",
		"http+unix:l.sock":                                "error: names no socket",
		"http+unix:":                                      "error: names no socket",
		"http+unix:/a%zz":                                 "error: names no socket",
		"http+unix:/l.sock?ca_file=/c":                    "error: without TLS",
		"http+unix:/l.sock?term=1m":                       "error: decides on term itself",
		"http://a:1,http+unix:/l.sock":                    "error: no address",
		"http://u:hunter2@a:1":                            "error: user or password",
		"http://a:1,https://b:2":                          "error: another scheme",
		"http://a:1,http://a:1":                           "error: twice",
		"http://":                                         "error: no address",
		"http://a:1,":                                     "error: no address",
		"http:a":                                          "error: no address",
		"http://a:x":                                      "error: malformed",
		"http://a#b":                                      "error: '#'",
		"http://a?token=hunter2":                          `error: "token" that is not known here: allowed are token_file, ca_file, cert_file, key_file`,
		"http://a?term=5m":                                "error: decides on term itself",
		"http://a?ids=0-9":                                "error: decides on ids itself",
		"https://a?cert_file=/c":                          "error: go together",
		"http://a?ca_file=/c":                             "error: write https://",
		"http://a" + strings.Repeat(",http://b", 16) + "": "error: twice",
		"http://a?x=%zz":                                  "error: malformed",
	} {
		cfg, err := httplease.ParseURL(raw)
		got := ""
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = cfg.Info().URL
		}
		if fragment, isErr := strings.CutPrefix(want, "error: "); isErr && (err == nil || !strings.Contains(got, fragment)) || !isErr && got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
		if strings.Contains(got, "hunter2") {
			t.Errorf("%s shows a secret: %s", raw, got)
		}
	}
	many := "http://host-0"
	for i := 1; i <= 16; i++ {
		many += fmt.Sprintf(",host-%d", i)
	}
	if _, err := httplease.ParseURL(many); err == nil || !strings.Contains(err.Error(), "17 servers") {
		t.Errorf("17 servers: %v", err)
	}
}

func TestInfo(t *testing.T) {
	cfg, err := httplease.ParseURL("https://a:1,b:2?token_file=/t")
	if err != nil {
		t.Fatal(err)
	}
	want := provider.Info{Name: "https", URL: "https://a:1,https://b:2", Scope: provider.ScopeShared, OwnClock: true, Coordinated: true,
		Can: provider.Can{Verify: true, List: true, Extend: true, Locate: true, Count: true}}
	if got := cfg.Info(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// mustOpen opens a provider that the test closes.
func mustOpen(t *testing.T, raw string) *httplease.Provider {
	t.Helper()
	cfg, err := httplease.ParseURL(raw)
	if err != nil {
		t.Fatal(err)
	}
	p, err := httplease.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// stub is a server that answers as it is told, and counts.
type stub struct {
	*httptest.Server
	calls  atomic.Int64
	answer atomic.Value // http.HandlerFunc
}

func newStub(t *testing.T, answer http.HandlerFunc) *stub {
	s := &stub{}
	s.answer.Store(answer)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		s.answer.Load().(http.HandlerFunc)(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func refusing(p *problem.Problem) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", problem.MediaType)
		if after := p.RetryAfter(); after != "" {
			w.Header().Set("Retry-After", after)
		}
		w.WriteHeader(p.Status)
		fmt.Fprintf(w, `{"status":%d,"code":%q,"detail":%q,"retryAfterMs":%d,"pool":"p"}`, p.Status, p.Code, p.Detail, p.RetryAfterMS)
	}
}

func plain(status int, media, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func granting() http.HandlerFunc {
	l := provider.DefaultTerms().Grant(7, time.Now().UnixMilli(), "secret")
	return plain(200, "application/json", fmt.Sprintf(`{"leases":[{"id":7,"created":%d,"expired":%d,"reservedUntil":%d,"secret":"secret","customEpoch":%d,"bitReserve":1,"bitTs":41,"bitId":14,"bitSeq":8}]}`,
		l.Created, l.Expired, l.ReservedUntil, l.EpochMS))
}

// cut closes the connection without an answer, after it has read the request.
func cut(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// deadURL is an address at which nothing listens.
func deadURL(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func busy() http.HandlerFunc {
	return refusing(problem.New(problem.Overloaded, "much to do").After(7 * time.Second))
}

func unavailable() http.HandlerFunc {
	return refusing(problem.New(problem.Unavailable, "the store is away").After(time.Second))
}

// A server that cut the connection may have granted. What the next one says of
// the request does not settle that; what it says of the store does.
func TestFailoverStaysUncertain(t *testing.T) {
	for name, test := range map[string]struct {
		second  http.HandlerFunc
		settled bool
	}{
		"rate limited":  {refusing(problem.New(problem.RateLimited, "slowly").After(time.Second)), false},
		"invalid":       {refusing(problem.New(problem.InvalidRequest, "what?")), false},
		"unknown token": {refusing(problem.New(problem.Unauthenticated, "who?")), false},
		"an old server": {plain(404, "text/plain", "404 page not found"), false},
		"full":          {refusing(problem.New(problem.NoMachineID, "full")), true},
		"conflict":      {refusing(problem.New(problem.Conflict, "over")), true},
	} {
		first, second := newStub(t, cut), newStub(t, test.second)
		p := mustOpen(t, first.URL+","+second.URL)
		_, err := p.Acquire(within(t, patience), provider.AcquireRequest{RequestID: "r"})
		var busy *provider.BusyError
		var full *provider.FullError
		settled := errors.As(err, &busy) || errors.As(err, &full) || errors.Is(err, provider.ErrInvalid) || errors.Is(err, provider.ErrConflict)
		if err == nil || settled != test.settled {
			t.Errorf("%s: the result is %v, settled: %v", name, err, settled)
		}
		if !settled && (!strings.Contains(err.Error(), first.URL) || !strings.Contains(err.Error(), second.URL)) {
			t.Errorf("%s: %v does not name both servers", name, err)
		}
	}
}

// What the first of two servers does, and whether the second is asked.
func TestFailover(t *testing.T) {
	for name, test := range map[string]struct {
		first http.HandlerFunc
		next  bool
	}{
		"cut off":           {cut, true},
		"overloaded":        {busy(), true},
		"its store is away": {unavailable(), true},
		"a proxy's 502":     {plain(502, "text/html", "<h1>Bad gateway</h1>"), true},
		"no lease server":   {plain(200, "text/html", "hello"), true},
		"half an answer":    {plain(200, "application/json", `{"leases":[`), true},
		"full":              {refusing(problem.New(problem.NoMachineID, "full")), false},
		"fenced":            {refusing(problem.New(problem.Fenced, "fenced")), false},
		"conflict":          {refusing(problem.New(problem.Conflict, "conflict")), false},
		"rate limited":      {refusing(problem.New(problem.RateLimited, "slowly")), false},
		"unknown token":     {refusing(problem.New(problem.Unauthenticated, "who?")), true},
		"token without it":  {refusing(problem.New(problem.Forbidden, "you may not")), true},
		"the wrong path":    {plain(404, "text/plain", "404 page not found"), false},
		"a redirect elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://example.invalid/", http.StatusTemporaryRedirect)
		}, false},
	} {
		first, second := newStub(t, test.first), newStub(t, granting())
		p := mustOpen(t, first.URL+","+second.URL)
		leases, err := p.Acquire(within(t, patience), provider.AcquireRequest{})
		if asked := second.calls.Load() > 0; asked != test.next || (err == nil) != test.next {
			t.Errorf("%s: the second server was asked: %v, and the result is %v, %v", name, asked, leases, err)
		}
		if test.next {
			before := first.calls.Load()
			if _, err := p.Acquire(within(t, patience), provider.AcquireRequest{}); err != nil || first.calls.Load() != before {
				t.Errorf("%s: it does not stay with the server that answered: %v", name, err)
			}
		}
	}
}

// The repetition on the next server is the same request.
func TestFailoverRepeats(t *testing.T) {
	var bodies [2]atomic.Value
	reading := func(i int, then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			bodies[i].Store(string(b))
			then(w, r)
		}
	}
	first, second := newStub(t, reading(0, cut)), newStub(t, reading(1, granting()))
	if _, err := mustOpen(t, first.URL+","+second.URL).Acquire(within(t, patience), provider.AcquireRequest{}); err != nil {
		t.Fatal(err)
	}
	if a := bodies[0].Load().(string); a != bodies[1].Load() || !strings.Contains(a, `"requestId":"`) {
		t.Errorf("%s, then %s", a, bodies[1].Load())
	}
}

// Nobody can be reached, or nobody is well.
func TestAllServersFail(t *testing.T) {
	dead := deadURL(t)
	var busyErr *provider.BusyError
	for name, test := range map[string]struct {
		servers []http.HandlerFunc
		settled bool // nothing was granted, for certain
	}{
		"all overloaded":             {[]http.HandlerFunc{busy(), busy()}, true},
		"none there, one overloaded": {[]http.HandlerFunc{nil, busy()}, true},
		"cut off, then overloaded":   {[]http.HandlerFunc{cut, busy()}, false},
		"away, then overloaded":      {[]http.HandlerFunc{unavailable(), busy()}, false},
		"overloaded, then cut off":   {[]http.HandlerFunc{busy(), cut}, false},
		"all away":                   {[]http.HandlerFunc{unavailable(), unavailable()}, false},
		"none there":                 {[]http.HandlerFunc{nil}, false},
	} {
		var urls []string
		for _, s := range test.servers {
			if s == nil {
				urls = append(urls, dead)
			} else {
				urls = append(urls, newStub(t, s).URL)
			}
		}
		_, err := mustOpen(t, strings.Join(urls, ",")).Acquire(within(t, patience), provider.AcquireRequest{})
		if got := errors.As(err, &busyErr); err == nil || got != test.settled {
			t.Errorf("%s: settled is %v, want %v: %v", name, got, test.settled, err)
		}
		if test.settled && busyErr.RetryAfter != 7*time.Second {
			t.Errorf("%s: come back in %v", name, busyErr.RetryAfter)
		}
		for _, u := range urls {
			if !test.settled && !strings.Contains(err.Error(), u) {
				t.Errorf("%s: the error does not name %s: %v", name, u, err)
			}
		}
	}
}

// A server that hangs has its share of the time and no more.
func TestHangingServer(t *testing.T) {
	letGo := make(chan struct{})
	hanging := newStub(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-letGo:
		case <-r.Context().Done():
		}
	})
	defer close(letGo)
	second := newStub(t, granting())
	p := mustOpen(t, hanging.URL+","+second.URL)
	if _, err := p.Acquire(within(t, 2*time.Second), provider.AcquireRequest{}); err != nil {
		t.Error(err)
	}
	alone := mustOpen(t, hanging.URL)
	if _, err := alone.Acquire(within(t, 50*time.Millisecond), provider.AcquireRequest{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("alone: %v", err)
	}
	// Closing ends what is under way.
	ended := make(chan error, 1)
	before := hanging.calls.Load()
	go func() {
		_, err := alone.Acquire(context.Background(), provider.AcquireRequest{})
		ended <- err
	}()
	for hanging.calls.Load() == before {
		time.Sleep(time.Millisecond)
	}
	alone.Close()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("closed under way: %v", err)
	}
}

// A credential goes where the URL says and nowhere else.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := newStub(t, granting())
	here := newStub(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the-token-of-this-host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := mustOpen(t, here.URL+"?token_file="+token).Acquire(within(t, patience), provider.AcquireRequest{})
	if err == nil || !strings.Contains(err.Error(), "redirects are not followed") || elsewhere.calls.Load() > 0 {
		t.Errorf("%v", err)
	}
}

func TestTokenFile(t *testing.T) {
	var got atomic.Value
	s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Authorization"))
		granting()(w, r)
	})
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first-token\n")
	p := mustOpen(t, s.URL+"?token_file="+path)
	acquire := func() error {
		_, err := p.Acquire(within(t, patience), provider.AcquireRequest{})
		return err
	}
	if err := acquire(); err != nil || got.Load() != "Bearer first-token" {
		t.Errorf("%v, %v", got.Load(), err)
	}
	write("second-token")
	if err := acquire(); err != nil || got.Load() != "Bearer second-token" {
		t.Errorf("after a change: %v, %v", got.Load(), err)
	}
	for _, bad := range []string{"", "two\nlines", "two words", strings.Repeat("x", 20_000)} {
		write(bad)
		calls := s.calls.Load()
		if err := acquire(); err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "two") || s.calls.Load() != calls {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	cfg, err := httplease.ParseURL(s.URL + "?token_file=" + path + "-missing")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := httplease.New(cfg); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// Answers that no lease server gives are errors, and short ones.
func TestMalformedAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"no JSON":         {plain(200, "text/html", "<html>"), "is this a lease server?"},
		"half":            {plain(200, "application/json", `{"leases":[{"id":`), "malformed"},
		"more":            {plain(200, "application/json", `{"leases":[]} {}`), "something follows"},
		"wrong types":     {plain(200, "application/json", `{"leases":[{"id":"7"}]}`), "malformed"},
		"no lease":        {plain(200, "application/json", `{"leases":[]}`), "without one"},
		"no body":         {plain(204, "application/json", ``), "malformed"},
		"endless":         {plain(200, "application/json", `{"x":"`+strings.Repeat("x", 17<<20)), "larger than"},
		"a long problem":  {plain(500, "text/plain", strings.Repeat("x", 1<<20)), "HTTP 500"},
		"control signs":   {plain(500, "text/plain", "a\x1b[31m\nb\x00"), "a [31m b"},
		"not its problem": {plain(503, problem.MediaType, `{"title":`), "HTTP 503"},
	} {
		s := newStub(t, test.answer)
		_, err := mustOpen(t, s.URL).Acquire(within(t, patience), provider.AcquireRequest{})
		if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\x1b\n\x00") {
			t.Errorf("%s: %.500v", name, err)
		}
	}
	s := newStub(t, plain(200, "application/json", `{"lost":[1]}`))
	l := provider.DefaultTerms().Grant(7, time.Now().UnixMilli(), "s")
	if _, err := provider.Verify(within(t, patience), mustOpen(t, s.URL), "", []lease.Lease{l}); err == nil {
		t.Error("a lease that was not asked for is lost")
	}
	shorter := l
	shorter.Expired--
	s = newStub(t, plain(200, "application/json", fmt.Sprintf(`{"lease":{"id":7,"bitTs":41,"bitId":14,"bitSeq":8,"expired":%d}}`, shorter.Expired)))
	if got, err := provider.Extend(within(t, patience), mustOpen(t, s.URL), "", l); err == nil {
		t.Errorf("an extension shortened the lease: %v", got)
	}
}

// What JSON would turn into something else is not sent.
func TestInvalidText(t *testing.T) {
	s := newStub(t, granting())
	for _, req := range []provider.AcquireRequest{
		{Service: "a\xff"}, {RequestID: "a\xff"}, {Meta: map[string]string{"a\xff": ""}}, {Meta: map[string]string{"": "a\xff"}},
	} {
		if _, err := mustOpen(t, s.URL).Acquire(within(t, patience), req); !errors.Is(err, provider.ErrInvalid) || s.calls.Load() > 0 {
			t.Errorf("%+v: %v", req, err)
		}
	}
}

// More leases than one request may verify are verified in several.
func TestVerifyMany(t *testing.T) {
	services := provider.Services{Default: provider.DefaultTerms()}
	services.Default.MaxLeasesPerAcquire = 1000
	m, err := memory.New(memory.NewStore(nil), services)
	if err != nil {
		t.Fatal(err)
	}
	p, err := open(m, services, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	leases, err := p.Acquire(within(t, patience), provider.AcquireRequest{ThroughputPerMS: 600 * 256})
	if err != nil || len(leases) != 600 {
		t.Fatal(len(leases), err)
	}
	leases[3].Secret, leases[599].Secret = "x", "y"
	lost, err := provider.Verify(within(t, patience), p, "", leases)
	if err != nil || len(lost) != 2 || lost[0] != leases[3] || lost[1] != leases[599] {
		t.Errorf("%v, %v", lost, err)
	}
}

// Two servers in front of one store are one provider: what the one granted, the
// other knows, and a killed one is not missed.
func TestTwoServers(t *testing.T) {
	services := provider.Services{Default: provider.DefaultTerms()}
	store := memory.NewStore(nil)
	var fronts [2]*front
	for i := range fronts {
		m, err := memory.New(store, services)
		if err != nil {
			t.Fatal(err)
		}
		if fronts[i], err = serve(options(m, services)); err != nil {
			t.Fatal(err)
		}
	}
	p := mustOpen(t, fronts[0].url+","+fronts[1].url)
	req := provider.AcquireRequest{RequestID: provider.NewSecret()}
	first, err := p.Acquire(within(t, patience), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := fronts[0].close(); err != nil {
		t.Fatal(err)
	}
	again, err := p.Acquire(within(t, patience), req)
	if err != nil || again[0] != first[0] {
		t.Errorf("the other server gave %v, %v, want %v", again, err, first)
	}
	at := time.Now().UnixMilli()
	for range 2 {
		if err := p.Release(within(t, patience), provider.ReleaseRequest{
			ID: first[0].ID, BitSeq: provider.AnyBitSeq, TimestampMS: at, Signature: lease.Sign(first[0].Secret, first[0].ID, at),
		}); err != nil {
			t.Error(err)
		}
	}
	if err := fronts[1].close(); err != nil {
		t.Fatal(err)
	}
}

// A server that was restarted at the same address is found again, although idle
// connections to the old one are left.
func TestRestartedServer(t *testing.T) {
	services := provider.Services{Default: provider.DefaultTerms()}
	store := memory.NewStore(nil)
	start := func(address string) *front {
		t.Helper()
		m, err := memory.New(store, services)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		return serveOn(l, options(m, services))
	}
	f := start("127.0.0.1:0")
	p := mustOpen(t, f.url)
	for range 3 {
		if _, err := p.Acquire(within(t, patience), provider.AcquireRequest{}); err != nil {
			t.Error(err)
		}
		if err := f.close(); err != nil {
			t.Fatal(err)
		}
		f = start(strings.TrimPrefix(f.url, "http://"))
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
}
