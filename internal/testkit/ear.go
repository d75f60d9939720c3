package testkit

import (
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Ear is a service manager's notification socket.
type Ear struct {
	t    *testing.T
	conn *net.UnixConn
	Path string
	All  []string // assignments in the order in which they came
}

func NewEar(s *Site) *Ear {
	s.T.Helper()
	path := s.Path("notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must.Succeed(s.T, err)
	s.T.Cleanup(func() { _ = conn.Close() })
	return &Ear{t: s.T, conn: conn, Path: path}
}

// Await reads on until an assignment matches, and returns it.
func (e *Ear) Await(pattern string) string {
	e.t.Helper()
	want := regexp.MustCompile(pattern)
	must.Succeed(e.t, e.conn.SetReadDeadline(time.Now().Add(await.Patience)))
	buf := make([]byte, 64<<10)
	for {
		n, err := e.conn.Read(buf)
		if err != nil {
			e.t.Fatalf("nothing matches %s: %v; heard %q", pattern, err, e.All)
		}
		found := ""
		for line := range strings.Lines(string(buf[:n])) {
			line = strings.TrimSuffix(line, "\n")
			e.All = append(e.All, line)
			if want.MatchString(line) {
				found = line
			}
		}
		if found != "" {
			return found
		}
	}
}
