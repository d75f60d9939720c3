package testkit

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// LeaseServer is a lease server that was started.
type LeaseServer struct {
	*Instance
	Address string
}

func (l *LeaseServer) URL() string { return "http://" + l.Address }

// StartLeaseServer runs a lease server, and returns when it answers.
func (s *Site) StartLeaseServer(address string, args ...string) *LeaseServer {
	s.T.Helper()
	return s.StartLeaseServerWith("none", address, args...)
}

// StartLeaseServerWith is the same with a configuration file.
func (s *Site) StartLeaseServerWith(config, address string, args ...string) *LeaseServer {
	s.T.Helper()
	l := &LeaseServer{Instance: s.LaunchCommand(s.Command(append([]string{
		"lease-server", "--config", config, "--listen", address, "--drain-delay", "0", "--log-format", "json",
	}, args...)...))}
	l.AwaitAddress()
	return l
}

// AwaitAddress returns when the server has said where it listens.
func (l *LeaseServer) AwaitAddress() {
	l.T.Helper()
	l.eventually("the lease server says where it listens", func() bool {
		for _, line := range l.Log.Lines(l.T) {
			if line["msg"] == "the lease server is ready" {
				l.Address = line["listen"].(string)
			}
		}
		return l.Address != ""
	})
}

// Ready reports whether the server answers.
func (l *LeaseServer) Ready() bool {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: await.Patience}
	res, err := client.Get(l.URL() + "/readyz")
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// Answer sends the server a request with the token and, unless it is nil, the body as JSON.
func (l *LeaseServer) Answer(method, path, token string, body any) (status int, answer string) {
	l.T.Helper()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			l.T.Fatal(err)
		}
	}
	r, err := http.NewRequestWithContext(l.T.Context(), method, l.URL()+path, bytes.NewReader(text))
	must.Succeed(l.T, err)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: await.Patience}
	res, err := client.Do(r)
	must.Succeed(l.T, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		l.T.Fatalf("%s %s: status %d, %v: %s", method, path, res.StatusCode, err, b)
	}
	return res.StatusCode, string(b)
}

// Asked is Answer for a request that must succeed. It fills in the answer, if into is not nil.
func (l *LeaseServer) Asked(method, path, token string, body, into any) {
	l.T.Helper()
	status, answer := l.Answer(method, path, token, body)
	if status >= 300 {
		l.T.Fatalf("%s %s: status %d: %s", method, path, status, answer)
	}
	if into != nil {
		DecodeJSON(l.T, answer, into)
	}
}
