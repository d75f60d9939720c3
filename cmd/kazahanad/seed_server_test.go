package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// seedServer is a lease server in Python that knows the design's two requests, and none of what this
// project adds to them.
type seedServer struct {
	*testkit.Instance
	url string
}

// startSeedServer runs it, and returns when it listens.
func (s *site) startSeedServer(args ...string) *seedServer {
	s.T.Helper()
	cmd := exec.Command(ring.Program(s.T, "python3"), append([]string{"testdata/seed_lease_server.py"}, args...)...)
	cmd.Env = s.Environment()
	out := &testkit.Log{}
	cmd.Stdout, cmd.Stderr = out, out
	server := &seedServer{Instance: s.LaunchCommand(cmd)}
	server.Log = out
	await.Eventually(s.T, "the server says where it listens", func() bool {
		_, port, ok := strings.Cut(out.String(), "listening ")
		if port, _, complete := strings.Cut(port, "\n"); ok && complete {
			server.url = "http://127.0.0.1:" + port
		}
		return server.url != ""
	})
	return server
}

// count is how many lines the server has said that begin with the word.
func (s *seedServer) count(word string) int {
	return strings.Count("\n"+s.Log.String(), "\n"+word+" ")
}

// A server written from the design alone, in another language, serves a daemon
// through ten renewals. The daemon says once what the server lacks.
func TestSeedOnlyServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startSeedServer("--term", "1000")
	args := []string{"--provider", server.url, "--verify-interval", "100ms", "--acquire-retry-interval", "100ms", "--log-format", "json"}
	d := s.Start(args...)
	c := s.Dial()
	last, machines := snowflake.ID(0), map[int64]bool{}
	await.Eventually(t, "ten renewals", func() bool { // seed 000-4.2-2
		id := c.ID()
		if id <= last {
			t.Fatalf("%d came after %d", id, last)
		}
		last = id
		if machine := int64(id) >> 8 & (1<<14 - 1); machine < 1<<13 { // a regular ID of the server's layout
			machines[machine] = true
		}
		return server.count("granted") > 10 && len(machines) > 10
	})
	if st := c.Status(); st.Scope != "shared" {
		t.Errorf("scope %s", st.Scope)
	}
	s.Examined(nil, "--provider", server.url).Has("provider ok", "no provider fail")
	d.Terminate()
	// A lease that has ended, on a machine that is too busy to renew it, is not given back.
	await.Eventually(t, "a lease is given back", func() bool {
		if server.count("released") == 0 {
			again := s.Start(args...)
			s.Dial().ID()
			again.Terminate()
		}
		return server.count("released") > 0
	})
	for _, event := range d.Log.Lines(t) {
		text := fmt.Sprint(event["msg"])
		cutOff := strings.Contains(fmt.Sprint(event["error"]), "context canceled") // a verification, by the stop
		if !cutOff && (strings.Contains(text, "verified") || strings.Contains(text, "refused") || strings.Contains(text, "not released")) {
			t.Errorf("logged %v", event)
		}
	}
}
