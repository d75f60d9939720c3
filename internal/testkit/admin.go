package testkit

import (
	"context"
	"io"
	"net"
	"net/http"

	"github.com/kazahana/kazahana/internal/testkit/await"
)

// Get asks the daemon's side door.
func (s *Site) Get(path string) (code int, body string) {
	s.T.Helper()
	code, body, err := GetUnix(s.Path("admin.sock"), path)
	if err != nil {
		s.T.Fatal(err)
	}
	return code, body
}

// GetUnix asks for a path over a Unix socket.
func GetUnix(socket, path string) (code int, body string, err error) {
	client := &http.Client{Timeout: await.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	answer, err := client.Get("http://admin" + path)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}
