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
	s.Examined(nil, "--provider", server.URL).Has("provider ok", "no provider fail")
	d.Terminate()
	// A lease that has ended, on a machine that is too busy to renew it, is not given back.
	await.Eventually(t, "a lease is given back", func() bool {
		if server.Count("released") == 0 {
			again := s.Start(args...)
			s.Dial().ID()
			again.Terminate()
		}
		return server.Count("released") > 0
	})
	for _, event := range d.Log.Lines(t) {
		text := fmt.Sprint(event["msg"])
		cutOff := strings.Contains(fmt.Sprint(event["error"]), "context canceled") // a verification, by the stop
		if !cutOff && (strings.Contains(text, "verified") || strings.Contains(text, "refused") || strings.Contains(text, "not released")) {
			t.Errorf("logged %v", event)
		}
	}
}
