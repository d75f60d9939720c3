package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// In all bytes between daemon and lease server each secret is there once: in the
// answer that granted the lease. Verifications, extensions and releases are signed.
func TestSecretTravelsOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "memory:?term=1s&quarantine=500ms")
	proxy, err := providertest.NewProxy("tcp", server.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	url := "http://" + proxy.Addr()
	seen := func(text string, n int) {
		t.Helper()
		await.Eventually(t, text, func() bool { return proxy.Count(text) >= n })
	}

	d := s.Start("--provider", url, "--verify-interval", "50ms")
	s.Dial().ID()
	seen("POST /leases/verify", 5)
	seen("POST /lease ", 3)
	d.Terminate()
	seen("DELETE /lease/", 1)

	done := s.Path("done")
	run := s.LaunchCommand(s.Command("run", "--config", "none", "--provider", url, "--", "sh", "-c", "while [ ! -e "+done+" ]; do sleep 0.05; done"))
	seen("POST /leases/extend", 3)
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run.AwaitEnd()

	secrets := regexp.MustCompile(`"secret":"([0-9a-f]{32})"`).FindAllStringSubmatch(string(proxy.Recorded()), -1)
	if len(secrets) < 4 {
		t.Fatalf("%d leases were granted", len(secrets))
	}
	for _, m := range secrets {
		if n := proxy.Count(m[1]) + proxy.Count(strings.ToUpper(m[1])); n != 1 {
			t.Errorf("a secret travelled %d times", n)
		}
	}
}
