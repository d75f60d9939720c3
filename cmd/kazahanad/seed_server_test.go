package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// seedServer is a lease server in Python that knows the design's two requests, and
// none of what this project adds to them.
type seedServer struct {
	*instance
	url string
}

func (s *site) startSeedServer(args ...string) *seedServer {
	s.t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		s.t.Skip("python3 is not installed")
	}
	cmd := exec.Command(python, append([]string{"testdata/seed_lease_server.py"}, args...)...)
	cmd.Env = s.environment()
	out := &logBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	server := &seedServer{instance: s.launchCommand(cmd)}
	server.log = out
	eventually(s.t, "the server says where it listens", func() bool {
		_, port, ok := strings.Cut(out.String(), "listening ")
		if port, _, complete := strings.Cut(port, "\n"); ok && complete {
			server.url = "http://127.0.0.1:" + port
		}
		return server.url != ""
	})
	return server
}

// count is how many lines the server has said that begin with the word.
func (s *seedServer) count(word string) int { return strings.Count("\n"+s.log.String(), "\n"+word+" ") }

// A server written from the design alone, in another language, serves a daemon
// through ten renewals. The daemon says once what the server lacks.
func TestSeedOnlyServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startSeedServer("--term", "1000")
	d := s.start("--provider", server.url, "--verify-interval", "100ms", "--acquire-retry-interval", "100ms", "--log-format", "json")
	c := s.dial()
	last, machines := snowflake.ID(0), map[int64]bool{}
	eventually(t, "ten renewals", func() bool {
		id := c.id()
		if id <= last {
			t.Fatalf("%d came after %d", id, last)
		}
		last = id
		if machine := int64(id) >> 8 & (1<<14 - 1); machine < 1<<13 { // a regular ID of the server's layout
			machines[machine] = true
		}
		return server.count("granted") > 10 && len(machines) > 10
	})
	if st := c.status(); st.Scope != "shared" {
		t.Errorf("scope %s", st.Scope)
	}
	d.terminate()
	if server.count("released") == 0 {
		t.Error("no lease was given back")
	}
	told := 0
	for _, event := range d.log.lines(t) {
		text := fmt.Sprint(event["msg"])
		if strings.Contains(text, "verified") || strings.Contains(text, "refused") || strings.Contains(text, "not released") {
			t.Errorf("logged %v", event)
		}
		if text == "the lease server lacks optional parts" {
			told++
			if want := "[POST /leases/verify requestId in the answer to POST /lease reservedUntil in leases]"; fmt.Sprint(event["lacks"]) != want || event["level"] != "info" {
				t.Errorf("logged %v, want level info and that it lacks %s", event, want)
			}
		}
	}
	if told != 1 {
		t.Errorf("it was said %d times what the server lacks", told)
	}
}

// The conformance command tells servers apart by what daemons need.
func TestConformanceCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	own := s.startLeaseServer("127.0.0.1:0", "--provider", "memory:?ids=0-99")
	out := s.kazahanad("leases", "conformance", own.url()).ok(t)
	if strings.Contains(out, "missing") && !strings.Contains(out, " 0 missing, 0 failed\n") || strings.Contains(out, "FAILED") {
		t.Errorf("of our own server: %s", out)
	}
	seed := s.startSeedServer()
	out = s.kazahanad("leases", "conformance", seed.url).ok(t)
	if strings.Contains(out, "FAILED") || strings.Count(out, "missing (optional)") != 8 || !strings.Contains(out, " 8 missing, 0 failed\n") {
		t.Errorf("of one that has what the design asks for: %s", out)
	}
	s.examined(nil, "--provider", seed.url).has("http.ok", "no http.not_ready", "no http.refused")
	if seed.count("granted") == 0 {
		t.Error("no lease was taken")
	}
	for line := range strings.Lines(seed.log.String()) {
		if id, ok := strings.CutPrefix(line, "granted "); ok && !strings.Contains(seed.log.String(), "released "+id) {
			t.Errorf("the lease of machine ID %s was not given back", id)
		}
	}
	for fault, want := range map[string]string{
		"signature":  "with a forged signature is refused: it was carried out",
		"window":     "signed an hour ago is refused: it was carried out",
		"overlap":    "never valid at the same time",
		"secret":     "two leases have the same secret",
		"throughput": "IDs per millisecond together",
		"fallback":   "has machine IDs 0 to 8191",
		"seconds":    "which is no interval",
	} {
		t.Run(fault, func(t *testing.T) {
			broken := s.startSeedServer("--fault", fault)
			o := s.kazahanad("leases", "conformance", broken.url)
			failed := ""
			for line := range strings.Lines(o.stdout) {
				if strings.HasPrefix(line, "FAILED") {
					failed += line
				}
			}
			if o.code != exitFailure || !strings.Contains(failed, want) || !strings.Contains(o.stderr, "cannot rely on this server") {
				t.Errorf("exit code %d, want FAILED with %q: %s%s", o.code, want, o.stdout, o.stderr)
			}
		})
	}
	own.terminate()
	s.kazahanad("leases", "conformance", own.url()).fails(t, exitFailure, "cannot rely on this server")
	s.kazahanad("leases", "conformance", own.url()+","+seed.url).fails(t, exitUsage, "name one")
	s.kazahanad("leases", "conformance", "sqlite:/x").fails(t, exitUsage, "http://HOST:PORT")
}
