package httpconn

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kazahana/kazahana/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, raw string) *Client {
	t.Helper()
	cfg, err := ParseURL(raw)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
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

// A segment arrives as it is, behind whatever path the server's URL has.
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

// TestOnceIsNotRepeated: neither at the next server nor on another connection, if
// it may have been carried out.
func TestOnceIsNotRepeated(t *testing.T) {
	for _, once := range []bool{false, true} {
		var first, second atomic.Int64
		var dropping atomic.Bool
		a := serve(t, func(w http.ResponseWriter, r *http.Request) {
			first.Add(1)
			if dropping.Load() {
				cut(w, r)
				return
			}
			ok(w)
		})
		b := serve(t, func(w http.ResponseWriter, r *http.Request) { second.Add(1); ok(w) })
		c := open(t, a+","+b)
		call := Call{Method: "POST", Path: "/x", Answer: &struct{}{}, Limit: 100, Once: once}
		if err := c.Do(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		dropping.Store(true) // on the connection that is kept
		err := c.Do(t.Context(), call)
		if once && (err == nil || first.Load() != 2 || second.Load() != 0 || Settled(err) != nil) || !once && (err != nil || second.Load() != 1) {
			t.Errorf("once %v: %v; %d and %d requests", once, err, first.Load(), second.Load())
		}
	}
	// What was refused before anything was done is tried elsewhere all the same.
	busy := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, problem.New(problem.Overloaded, "no").After(time.Second))
	})
	free := serve(t, func(w http.ResponseWriter, _ *http.Request) { ok(w) })
	if err := open(t, busy+","+free).Do(t.Context(), Call{Method: "POST", Path: "/x", Once: true}); err != nil {
		t.Error(err)
	}
}

// TestSettled: a refusal is an answer only if no server can have done it.
func TestSettled(t *testing.T) {
	busy := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, problem.New(problem.Overloaded, "busy").After(time.Second))
	})
	failed := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, problem.New(problem.Unavailable, "failed").After(time.Second))
	})
	held := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, problem.New(problem.LockHeld, "held").After(time.Second))
	})
	dropped := serve(t, cut)
	for _, test := range []struct {
		servers string
		want    problem.Code // "" = open
	}{
		{busy, problem.Overloaded}, {held, problem.LockHeld}, {busy + "," + held, problem.LockHeld}, {dropped + "," + held, problem.LockHeld},
		{failed, ""}, {dropped, ""}, {dropped + "," + busy, ""}, {failed + "," + busy, ""}, {busy + "," + failed, ""},
	} {
		err := open(t, test.servers).Do(t.Context(), Call{Method: "POST", Path: "/x"})
		p := Settled(err)
		if err == nil || (p == nil) != (test.want == "") || p != nil && p.Code != test.want {
			t.Errorf("%s: %v, settled %v, want %q", test.servers, err, p, test.want)
		}
	}
	if Settled(nil) != nil || Settled(errors.New("x")) != nil {
		t.Error("something is settled that is no answer")
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

// Close ends what is under way.
func TestClose(t *testing.T) {
	entered := make(chan struct{})
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(entered)
		<-r.Context().Done()
	})
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
	ctx, cancel := context.WithCancel(t.Context())
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
