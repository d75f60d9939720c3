package testkit

import (
	_ "embed"
	"os/exec"
	"strings"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

//go:embed seed_lease_server.py
var seedServerSource string

// SeedServer is a lease server in Python that knows the design's two requests, and
// none of what this project adds to them.
type SeedServer struct {
	*Instance
	URL string
}

// StartSeedServer runs it, and returns when it listens.
func (s *Site) StartSeedServer(args ...string) *SeedServer {
	s.T.Helper()
	cmd := exec.Command(ring.Program(s.T, "python3"), append([]string{"-c", seedServerSource}, args...)...)
	cmd.Env = s.Environment()
	out := &Log{}
	cmd.Stdout, cmd.Stderr = out, out
	server := &SeedServer{Instance: s.LaunchCommand(cmd)}
	server.Log = out
	await.Eventually(s.T, "the server says where it listens", func() bool {
		_, port, ok := strings.Cut(out.String(), "listening ")
		if port, _, complete := strings.Cut(port, "\n"); ok && complete {
			server.URL = "http://127.0.0.1:" + port
		}
		return server.URL != ""
	})
	return server
}

// Count is how many lines the server has said that begin with the word.
func (s *SeedServer) Count(word string) int { return strings.Count("\n"+s.Log.String(), "\n"+word+" ") }
