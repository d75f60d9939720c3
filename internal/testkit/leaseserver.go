package testkit

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"github.com/kazahana/kazahana/internal/testkit/await"
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
	await.Eventually(l.T, "the lease server says where it listens", func() bool {
		select {
		case <-l.Ended:
			l.T.Fatalf("the lease server ended: %v\n%s", l.Err, l.Log)
		default:
		}
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

// Asked sends the server a request with the token, and fills in the answer.
func (l *LeaseServer) Asked(method, path, token string, body, into any) {
	l.T.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		l.T.Fatal(err)
	}
	r, err := http.NewRequestWithContext(l.T.Context(), method, l.URL()+path, bytes.NewReader(text))
	if err != nil {
		l.T.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: await.Patience}
	answer, err := client.Do(r)
	if err != nil {
		l.T.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode >= 300 {
		l.T.Fatalf("%s %s: status %d, %v: %s", method, path, answer.StatusCode, err, b)
	}
	if into != nil {
		DecodeJSON(l.T, string(b), into)
	}
}
