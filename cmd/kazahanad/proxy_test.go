package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
)

// Behind a proxy that decodes paths, a daemon's users learn of the fault at once, and so does
// doctor. No daemon gets another key than its user has named.
func TestDaemonBehindAProxy(t *testing.T) {
	t.Parallel()
	behind, direct := newSite(t), newSite(t)
	server := direct.StartLeaseServer("127.0.0.1:0", "--provider", "memory:", "--store", "sqlite:"+direct.Path("store.db")).URL()
	proxy := proxytest.Nginx(t, fmt.Sprintf("location / { proxy_pass %[1]s; } location /decodes/ { proxy_pass %[1]s/; }", server))
	behind.Start("--provider", proxy+"/decodes")
	direct.Start("--provider", proxy)
	behind.Kazahanad("lock", "-q", "/job", "--wait", "0s", "--timeout", "1h", "--", "true").Fails(t, exitUsage, "NO_STORE", `"job"`, "%2F")
	behind.Kazahanad("seq", "/job").Fails(t, exitUsage, "NO_STORE", `"job"`, "%2F")
	behind.Kazahanad("lock", "-q", "jobs/1", "--timeout", "1h", "--", "true").Fails(t, exitUsage, "NO_STORE", "%2F")
	direct.Kazahanad("lock", "-q", "/job", "--wait", "0s", "--", "true").OK(t)
	if first := direct.Kazahanad("seq", "/job").OK(t); first != "1\n" {
		t.Errorf("the first value is %q", first)
	}
	behind.Kazahanad("lock", "-q", "job", "--wait", "0s", "--", "true").OK(t)
	behind.Examined(nil, "--provider", proxy+"/decodes").Has("provider warn", "no provider fail")
	direct.Examined(nil, "--provider", proxy).Has("provider ok", "no provider warn")
	direct.Examined(nil, "--provider", proxy+"/a-prefix-that-stays").Has("provider fail", "no provider ok")
}

// To extend a lease, as run does, a token needs the scope run.
func TestScopeRun(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	tokens := s.Path("tokens.yaml")
	testkit.WriteFile(t, tokens, "- {token: token-of-daemons-alone, owner: a, scopes: [leases]}\n- {token: token-of-programs-too, owner: b, scopes: [leases, run]}\n")
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "memory:?ids=0-99", "--tokens-file", tokens).URL()
	with := func(token string) string {
		testkit.WriteFile(t, s.Path(token), token)
		return server + "?token_file=" + s.Path(token)
	}
	daemons, programs := with("token-of-daemons-alone"), with("token-of-programs-too")
	// Seed 000-A.1-2.
	s.Kazahanad("run", "-q", "--provider", daemons, "--", "touch", s.Path("started")).Fails(t, exitFailure, `the scope "run"`, "scopes leases and run")
	if _, err := os.Stat(s.Path("started")); err == nil {
		t.Error("the program was started")
	}
	s.Kazahanad("run", "-q", "--provider", programs, "--", "touch", s.Path("started")).OK(t)
	// Nor is it of use to wait for a lock without the scope locks.
	s.Start("--provider", daemons)
	s.Kazahanad("lock", "-q", "job", "--timeout", "1h", "--", "true").Fails(t, exitUsage, "NO_STORE", `the scope "locks"`)
}
