package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// A server written from the design alone, in another language, serves a daemon
// through ten renewals. The daemon says once what the server lacks.
// Seed 000-4.2-2.
func TestSeedOnlyServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.StartSeedServer("--term", "1000")
	args := []string{"--provider", server.URL, "--verify-interval", "100ms", "--acquire-retry-interval", "100ms", "--log-format", "json"}
	d := s.Start(args...)
	c := s.Dial()
	last, machines := snowflake.ID(0), map[int64]bool{}
	await.Eventually(t, "ten renewals", func() bool {
		id := c.ID()
		if id <= last {
			t.Fatalf("%d came after %d", id, last)
		}
		last = id
		if machine := int64(id) >> 8 & (1<<14 - 1); machine < 1<<13 { // a regular ID of the server's layout
			machines[machine] = true
		}
		return server.Count("granted") > 10 && len(machines) > 10
	})
	if st := c.Status(); st.Scope != "shared" {
		t.Errorf("scope %s", st.Scope)
	}
	d.Terminate()
	// One that has ended, on a machine that is too busy to renew it, is not given back.
	await.Eventually(t, "a lease is given back", func() bool {
		if server.Count("released") == 0 {
			again := s.Start(args...)
			s.Dial().ID()
			again.Terminate()
		}
		return server.Count("released") > 0
	})
	told := 0
	for _, event := range d.Log.Lines(t) {
		text := fmt.Sprint(event["msg"])
		cutOff := strings.Contains(fmt.Sprint(event["error"]), "context canceled") // a verification, by the stop
		if !cutOff && (strings.Contains(text, "verified") || strings.Contains(text, "refused") || strings.Contains(text, "not released")) {
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
	own := s.StartLeaseServer("127.0.0.1:0", "--provider", "memory:?ids=0-99")
	out := s.Kazahanad("leases", "conformance", own.URL()).OK(t)
	if strings.Contains(out, "missing") && !strings.Contains(out, " 0 missing, 0 failed\n") || strings.Contains(out, "FAILED") {
		t.Errorf("of our own server: %s", out)
	}
	seed := s.StartSeedServer()
	out = s.Kazahanad("leases", "conformance", seed.URL).OK(t)
	if strings.Contains(out, "FAILED") || strings.Count(out, "missing (optional)") != 8 || !strings.Contains(out, " 8 missing, 0 failed\n") {
		t.Errorf("of one that has what the design asks for: %s", out)
	}
	s.Examined(nil, "--provider", seed.URL).Has("provider ok", "no provider fail", "no provider fail")
	if seed.Count("granted") == 0 {
		t.Error("no lease was taken")
	}
	for line := range strings.Lines(seed.Log.String()) {
		if id, ok := strings.CutPrefix(line, "granted "); ok && !strings.Contains(seed.Log.String(), "released "+id) {
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
			broken := s.StartSeedServer("--fault", fault)
			o := s.Kazahanad("leases", "conformance", broken.URL)
			failed := ""
			for line := range strings.Lines(o.Stdout) {
				if strings.HasPrefix(line, "FAILED") {
					failed += line
				}
			}
			if o.Code != exitFailure || !strings.Contains(failed, want) || !strings.Contains(o.Stderr, "cannot rely on this server") {
				t.Errorf("exit code %d, want FAILED with %q: %s%s", o.Code, want, o.Stdout, o.Stderr)
			}
		})
	}
	own.Terminate()
	s.Kazahanad("leases", "conformance", own.URL()).Fails(t, exitFailure, "cannot rely on this server")
	s.Kazahanad("leases", "conformance", own.URL()+","+seed.URL).Fails(t, exitUsage, "name one")
	s.Kazahanad("leases", "conformance", "sqlite:/x").Fails(t, exitUsage, "http://HOST:PORT")
}
