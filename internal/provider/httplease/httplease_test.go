package httplease_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/httplease"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestParseURL(t *testing.T) {
	for raw, want := range map[string]string{
		"http://127.0.0.1:7464":                        "http://127.0.0.1:7464",
		"http://a:1,http://b:2":                        "http://a:1,http://b:2",
		"https://a:1,b:2?token_file=/t":                "https://a:1,https://b:2",
		"https://a/base/,https://a/other?ca_file=/c":   "https://a/base,https://a/other",
		"https://[::1]:7464?cert_file=/c&key_file=/k":  "https://[::1]:7464",
		"http+unix:/run/l.sock":                        "http+unix:/run/l.sock",
		"HTTP+Unix:///run/a%20b%3F.sock?token_file=/t": "http+unix:/run/a%20b%3F.sock",
		"http+unix:l.sock":                             "error: names no socket",
		"http+unix:":                                   "error: names no socket",
		"http+unix:/a%zz":                              "error: names no socket",
		"http+unix:/l.sock?ca_file=/c":                 "error: without TLS",
		"http://a:1,http+unix:/l.sock":                 "error: no address",
		"http://u:hunter2@a:1":                         "error: user or password",
		"http://a:1,https://b:2":                       "error: another scheme",
		"http://a:1,http://a:1":                        "error: twice",
		"http://":                                      "error: no address",
		"http://a:1,":                                  "error: no address",
		"http:a":                                       "error: no address",
		"http://a:x":                                   "error: malformed",
		"http://a#b":                                   "error: '#'",
		"http://a?token=hunter2":                       `error: "token" that is not known here: allowed are token_file, ca_file, cert_file, key_file`,
		"http://a?term=5m":                             `error: "term" that is not known here`,
		"https://a?cert_file=/c":                       "error: go together",
		"http://a?ca_file=/c":                          "error: write https://",
		"http://a?x=%zz":                               "error: malformed",
	} {
		cfg, err := httpconn.ParseURL(raw)
		got := ""
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = cfg.Names()
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
	if _, err := httpconn.ParseURL(many); err == nil || !strings.Contains(err.Error(), "17 servers") {
		t.Errorf("17 servers: %v", err)
	}
}

// mustOpen opens a provider that the test closes.
func mustOpen(t *testing.T, raw string) *httplease.Provider {
	t.Helper()
	cfg, err := httpconn.ParseURL(raw)
	must.Succeed(t, err)
	p, err := httplease.New(cfg)
	must.Succeed(t, err)
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

// cut closes the connection without an answer, after it has read the request.
func cut(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.Close()
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
		"a long problem":  {plain(500, "text/plain", strings.Repeat("x", 1<<20)), "HTTP 500"},
		"control signs":   {plain(500, "text/plain", "a\x1b[31m\nb\x00"), "a [31m b"},
		"not its problem": {plain(503, problem.MediaType, `{"title":`), "HTTP 503"},
	} {
		s := newStub(t, test.answer)
		_, err := mustOpen(t, s.URL).Acquire(within(t, await.Patience), provider.AcquireRequest{})
		if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\x1b\n\x00") {
			t.Errorf("%s: %.500v", name, err)
		}
	}
	l := provider.DefaultTerms().Grant(7, time.Now().UnixMilli(), "s")
	shorter := l
	shorter.Expired--
	s := newStub(t, plain(200, "application/json", fmt.Sprintf(`{"lease":{"id":7,"bitTs":41,"bitId":14,"bitSeq":8,"expired":%d}}`, shorter.Expired)))
	if got, err := provider.Extend(within(t, await.Patience), mustOpen(t, s.URL), "", l); err == nil {
		t.Errorf("an extension shortened the lease: %v", got)
	}
}

// A server that cut the connection may have granted. The next one's answer to the request does
// not settle that; its word about the store does.
func TestUncertainUntilTheStoreAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		first, second http.HandlerFunc
		want          error // nil: not settled
	}{
		"overloaded":           {busy, busy, &provider.BusyError{}},
		"cut, then overloaded": {cut, busy, nil},
		"cut, then invalid":    {cut, refusing(problem.New(problem.InvalidRequest, "what?")), nil},
		"cut, then full":       {cut, refusing(problem.New(problem.NoMachineID, "full")), &provider.FullError{Pool: "p"}},
		"cut, then a conflict": {cut, refusing(problem.New(problem.Conflict, "over")), provider.ErrConflict},
	} {
		first, second := newStub(t, test.first), newStub(t, test.second)
		_, err := mustOpen(t, first.URL+","+second.URL).Acquire(within(t, await.Patience), provider.AcquireRequest{RequestID: "r"})
		var got *provider.BusyError
		if _, isBusy := test.want.(*provider.BusyError); isBusy && errors.As(err, &got) && got.RetryAfter == 7*time.Second {
			continue
		}
		settled := errors.As(err, &got) || errors.Is(err, provider.ErrInvalid)
		if test.want == nil && (err == nil || settled || !strings.Contains(err.Error(), first.URL)) ||
			test.want != nil && !errors.Is(err, test.want) && !reflect.DeepEqual(err, test.want) {
			t.Errorf("%s: the error is %v, want %v", name, err, test.want)
		}
	}
}

func busy(w http.ResponseWriter, r *http.Request) {
	refusing(problem.New(problem.Overloaded, "much to do").After(7*time.Second))(w, r)
}
