package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
)

// In all bytes between daemon and lease server each secret is there once: in the
// answer that granted the lease. Verifications, extensions and releases are signed. No log has it.
func TestSecretTravelsOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	through := func(terms string) (*testkit.LeaseServer, *proxytest.Proxy) {
		t.Helper()
		server := s.StartLeaseServer("127.0.0.1:0", "--provider", "memory:?"+terms, "--log-level", "debug")
		return server, proxytest.New(t, "tcp", server.Address)
	}
	seen := func(proxy *proxytest.Proxy, text string, n int) {
		t.Helper()
		await.Eventually(t, text, func() bool { return proxy.Count(text) >= n })
	}
	secrets := func(proxy *proxytest.Proxy, least int, logs ...*testkit.Log) {
		t.Helper()
		all := regexp.MustCompile(`"secret":"([0-9a-f]{32})"`).FindAllStringSubmatch(string(proxy.Recorded()), -1)
		if len(all) < least {
			t.Fatalf("%d leases were granted", len(all))
		}
		for _, m := range all {
			if n := proxy.Count(m[1]) + proxy.Count(strings.ToUpper(m[1])); n != 1 { // seed 000-4.5-1
				t.Errorf("a secret travelled %d times", n)
			}
			for _, log := range logs {
				if strings.Contains(strings.ToLower(log.String()), m[1]) { // seed 000-4.5-4
					t.Errorf("a log has a secret:\n%s", log)
				}
			}
		}
	}

	server, proxy := through("term=1s&quarantine=500ms")
	d := s.Start("--provider", "http://"+proxy.Addr(), "--verify-interval", "50ms")
	s.Dial().ID()
	seen(proxy, "POST /leases/verify", 5)
	seen(proxy, "POST /lease ", 3)
	d.Terminate()
	secrets(proxy, 3, server.Log, d.Log)

	server, proxy = through("term=30s") // a program is ended with its lease
	done := s.Path("done")
	run := s.LaunchCommand(s.Command("run", "--config", "none", "--provider", "http://"+proxy.Addr(), "--", "sh", "-c",
		"while [ ! -e "+done+" ]; do sleep 0.05; done"))
	seen(proxy, "POST /leases/extend", 2)
	testkit.WriteFile(t, done, "")
	run.AwaitEnd()
	seen(proxy, "DELETE /lease/", 1)
	secrets(proxy, 1, server.Log, run.Log)
}
