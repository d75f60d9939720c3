package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/kubetest"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// uncertain are the modes of a daemon without a lease.
var uncertain = append([]string{"fallback_cached_uncertain"}, testkit.FallbackModes...)

// kubeFleet is two daemons that lease from one API server, with the token in a file.
type kubeFleet struct {
	t       *testing.T
	url     string
	token   string // the file
	sites   []*site
	clients []*testkit.Client
	regular []uint64
}

func newKubeFleet(t *testing.T, terms, kubeconfig, token string) *kubeFleet {
	t.Helper()
	f := &kubeFleet{t: t}
	for range 2 {
		f.sites = append(f.sites, newSite(t))
	}
	s := f.sites[0]
	f.token = s.Path("token")
	f.rotates(token)
	testkit.WriteFile(t, s.Path("kubeconfig"), strings.Replace(kubeconfig, fmt.Sprintf("token: %q", token), fmt.Sprintf("tokenFile: %q", f.token), 1))
	f.url = "kubernetes:?" + terms + "&kubeconfig=" + s.Path("kubeconfig")
	for _, s := range f.sites {
		s.Start("--provider", f.url, "--provider-timeout", "1s", "--acquire-retry-interval", "100ms", "--acquire-retry-max-interval", "200ms", "--verify-interval", "500ms")
		f.clients = append(f.clients, s.Dial())
	}
	f.awaitRegular()
	return f
}

// rotates writes another token.
func (f *kubeFleet) rotates(token string) { testkit.WriteFile(f.t, f.token, token) }

// takes takes IDs from both.
func (f *kubeFleet) takes() {
	for _, c := range f.clients {
		for _, id := range c.IDs(200) {
			if !testkit.IsFallback(id) {
				f.regular = append(f.regular, id)
			}
		}
	}
}

// awaitRegular waits until both have a lease, and goes on taking IDs meanwhile.
func (f *kubeFleet) awaitRegular() { f.awaitModes("regular") }

func (f *kubeFleet) awaitModes(modes ...string) {
	f.t.Helper()
	await.Eventually(f.t, "both daemons are in a mode of "+strings.Join(modes, ", "), func() bool {
		f.takes()
		return !slices.ContainsFunc(f.clients, func(c *testkit.Client) bool { return !slices.Contains(modes, c.Status().Mode) })
	})
}

// awaitCause waits until the status of a daemon says why.
func (f *kubeFleet) awaitCause(text string) {
	f.t.Helper()
	await.Eventually(f.t, "the status says "+text, func() bool {
		f.takes()
		return slices.ContainsFunc(f.clients, func(c *testkit.Client) bool { return strings.Contains(c.Status().Services[0].Cause, text) })
	})
}

// awaitNone waits until no daemon has a lease left, and one says why.
func (f *kubeFleet) awaitNone(why string) {
	f.t.Helper()
	f.awaitModes(uncertain...)
	f.awaitCause(why)
}

// end waits until both daemons have leases again. No regular ID came twice.
func (f *kubeFleet) end() {
	f.t.Helper()
	f.awaitRegular()
	f.takes()
	if n, first := testkit.Duplicates(f.regular); n > 0 {
		f.t.Errorf("%d of %d regular IDs came twice; the first is %d", n, len(f.regular), first)
	}
}

// What can be tested without a real API server.
func TestKubernetesOutages(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(*kubeFleet, *kubetest.Server){
		"killed": func(f *kubeFleet, api *kubetest.Server) {
			api.Kill()
			f.awaitNone("connection refused")
			api.Revive(f.t)
		},
		"the token has ended": func(f *kubeFleet, api *kubetest.Server) {
			api.Revoke("daemon")
			f.awaitNone("401")
			api.Allow("next", kubetest.Verbs(f.t)...)
			f.rotates("next")
		},
		"put back": func(f *kubeFleet, api *kubetest.Server) {
			earlier := api.Snapshot()
			f.putBack(func() { api.Restore(earlier) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := kubetest.NewServer(t, nil)
			api.Allow("daemon", kubetest.Verbs(t)...)
			f := newKubeFleet(t, "term=2s&quarantine=1s", api.KubeconfigText("daemon"), "daemon")
			happens(f, api)
			f.end()
		})
	}
}

// Under any fault of a real API server, no regular ID comes twice, and both daemons have leases
// again once it works.
func TestKubernetesRealOutages(t *testing.T) {
	ring.Deep(t)
	real := kubetest.StartReal(t)
	namespace, token := real.Tenant()
	network := proxytest.New(t, "tcp", strings.TrimPrefix(real.URL, "https://"))
	// The servers start again within a term: what a snapshot has forgotten still lives.
	f := newKubeFleet(t, "term=10s&quarantine=5s", real.KubeconfigText("https://"+network.Addr(), namespace, token), token)
	// forbidden takes a verb from the Role, and gives it back after the error names it, and doctor does.
	forbidden := func(verb string, fails func(missing string)) func() {
		return func() {
			real.Forbid(namespace, verb)
			missing := fmt.Sprintf("verbs: [%q]", verb)
			if found := f.sites[0].Examined(nil, "--provider", f.url); !strings.Contains(fmt.Sprint(found.Findings), missing) {
				t.Errorf("without the right to %s, doctor says %v", verb, found.Findings)
			}
			fails(missing)
			real.Forbid(namespace)
		}
	}
	for _, event := range []struct {
		name    string
		happens func()
	}{
		{"killed", func() { real.Kill(); f.awaitModes(uncertain...); real.Revive() }},
		{"frozen", func() { thaw := real.Freeze(); f.awaitNone("deadline"); thaw() }},
		{"so slow that every answer comes too late", func() { network.Hold(); f.awaitNone("deadline"); network.Pass() }},
		{"busy", func() { end := real.Overload(namespace, token); f.awaitNone("429"); end() }},
		{"no right to get", forbidden("get", f.awaitCause)},
		{"no right to create", forbidden("create", f.awaitCause)},
		{"no right to update", forbidden("update", f.awaitCause)},
		{"no right to list", forbidden("list", func(missing string) { // which only a new pool needs
			f.sites[0].Kazahanad("leases", "init", "--config", "none", "--provider", f.url+"&pool=new").Fails(t, exitFailure, missing)
		})},
		{"the token has ended", func() {
			real.Revoke(namespace)
			f.awaitNone("401")
			token = real.Account(namespace)
			f.rotates(token)
		}},
		{"started from an older snapshot", func() { restore := real.Snapshot(); f.awaitRegular(); f.putBack(restore) }},
	} {
		t.Log("the API server: " + event.name)
		event.happens()
		f.end()
	}
}

// putBack has the API server go on from an older state, in which the present leases are
// missing. The operator fences the pool: the daemons find their leases lost, and nothing is
// granted until those have ended that were forgotten.
func (f *kubeFleet) putBack(restore func()) {
	before := []int64{f.clients[0].Lease().MachineID, f.clients[1].Lease().MachineID}
	await.Eventually(f.t, "both daemons have renewed their leases", func() bool {
		f.takes()
		return f.clients[0].Lease().MachineID != before[0] && f.clients[1].Lease().MachineID != before[1]
	})
	restore()
	shows := func(c *testkit.Client) bool {
		st := c.Status()
		return slices.Contains(uncertain, st.Mode) && len(st.Fences) == 1 && strings.HasPrefix(st.Fences[0].File, "kubernetes:") &&
			strings.Contains(st.Fences[0].Reason, "fenced by hand")
	}
	await.Eventually(f.t, "both daemons show the fence", func() bool {
		f.sites[0].Kazahanad("leases", "fence", "--config", "none", "--provider", f.url).OK(f.t) // each lasts for a term and its quarantine
		f.takes()
		return shows(f.clients[0]) && shows(f.clients[1])
	})
}
