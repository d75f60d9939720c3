package admin

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A page of a site with a name that was made to mean 127.0.0.1 gets nothing.
func TestRenamedPagesAreRefused(t *testing.T) {
	tcp := func(text string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", text)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	unix := &net.UnixAddr{Name: "/run/x", Net: "unix"}
	for _, test := range []struct {
		on         net.Addr
		configured string
		host       string
		allowed    bool
	}{
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "127.0.0.1:9746", true},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "localhost:9746", true},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "LOCALHOST", true},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "localhost:8080", true}, // a forwarded port
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "[::1]:9746", true},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "[::1]", true},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "127.9.9.9:1", true},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "evil.example:9746", false},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "localhost.evil.example", false},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "127.0.0.1.evil.example:9746", false},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "10.0.0.1:9746", false},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", "", true}, // HTTP/1.0: no browser
		{tcp("[::1]:9746"), "localhost:9746", ":9746", true},
		{tcp("127.0.0.1:9746"), "127.0.0.1:9746", ".", false},
		{tcp("127.0.0.1:9746"), "admin.internal:9746", "admin.internal:9746", true},
		{tcp("127.0.0.1:9746"), "admin.internal:9746", "other.internal:9746", false},
		{tcp("[::1]:9746"), "[::1]:9746", "evil.example", false},
		{tcp("[::1]:9746"), "[::1]:9746", "[::1]:9746", true},
		{tcp("10.0.0.1:9746"), "10.0.0.1:9746", "node7.internal:9746", true},
		{tcp("[::]:9746"), ":9746", "node7.internal:9746", true},
		{unix, "unix:/run/x", "anything", true},
	} {
		h := OwnNames(test.on, test.configured, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Host = test.host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if want := map[bool]int{true: 204, false: 421}[test.allowed]; w.Code != want {
			t.Errorf("on %v (%s), Host %q: %d, want %d", test.on, test.configured, test.host, w.Code, want)
		}
	}
}
