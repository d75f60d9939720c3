package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/kubetest"
)

// uncertain are the modes of a daemon without a lease.
var uncertain = append([]string{"fallback_cached_uncertain"}, testkit.FallbackModes...)

// kubeFleet is two daemons that lease from one API server, with the token in a file.
type kubeFleet struct {
	t       *testing.T
	api     *kubetest.Server
	url     string
	token   string // the file
	sites   []*site
	clients []*testkit.Client
	regular []uint64
}

func newKubeFleet(t *testing.T) *kubeFleet {
	t.Helper()
	f := &kubeFleet{t: t, api: kubetest.NewServer(t, nil)}
	f.api.Allow("daemon", kubetest.Verbs(t)...)
	for range 2 {
		f.sites = append(f.sites, newSite(t))
	}
	s := f.sites[0]
	f.token = s.Path("token")
	testkit.WriteFile(t, f.token, "daemon")
	config := strings.Replace(f.api.KubeconfigText("daemon"), `token: "daemon"`, `tokenFile: "`+f.token+`"`, 1)
	testkit.WriteFile(t, s.Path("kubeconfig"), config)
	f.url = "kubernetes:?term=2s&quarantine=1s&kubeconfig=" + s.Path("kubeconfig")
	for _, s := range f.sites {
		s.Start("--provider", f.url, "--provider-timeout", "1s", "--acquire-retry-interval", "100ms", "--acquire-retry-max-interval", "200ms", "--verify-interval", "500ms")
		f.clients = append(f.clients, s.Dial())
	}
	f.awaitRegular()
	return f
}

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

// Under any fault of the API server, no regular ID comes twice, and both daemons have leases
// again once it works.
func TestKubernetesOutages(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(*kubeFleet){
		"killed": func(f *kubeFleet) {
			f.api.Kill()
			f.awaitModes(uncertain...)
			f.awaitCause("connection refused")
			f.api.Revive(f.t)
		},
		"the token has ended": func(f *kubeFleet) {
			f.api.Revoke("daemon")
			f.awaitModes(uncertain...)
			f.awaitCause("401")
			f.api.Allow("next", kubetest.Verbs(f.t)...)
			testkit.WriteFile(f.t, f.token, "next")
		},
		"put back": (*kubeFleet).putBack,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newKubeFleet(t)
			happens(f)
			f.awaitRegular()
			f.takes()
			if n, first := testkit.Duplicates(f.regular); n > 0 {
				t.Errorf("%d of %d regular IDs came twice; the first is %d", n, len(f.regular), first)
			}
		})
	}
}

// putBack restarts the API server from an older snapshot, in which the present leases are
// missing. The operator fences the pool: the daemons find their leases lost, and nothing is
// granted until those have ended that were forgotten.
func (f *kubeFleet) putBack() {
	earlier := f.api.Snapshot()
	before := []int64{f.clients[0].Lease().MachineID, f.clients[1].Lease().MachineID}
	await.Eventually(f.t, "both daemons have renewed their leases", func() bool {
		f.takes()
		return f.clients[0].Lease().MachineID != before[0] && f.clients[1].Lease().MachineID != before[1]
	})
	f.api.Restore(earlier)
	shows := func(c *testkit.Client) bool {
		st := c.Status()
		return slices.Contains(uncertain, st.Mode) && len(st.Fences) == 1 && strings.HasPrefix(st.Fences[0].File, "kubernetes:") &&
			strings.Contains(st.Fences[0].Reason, "fenced by hand")
	}
	await.Eventually(f.t, "both daemons show the fence", func() bool {
		f.sites[0].Kazahanad("leases", "fence", "--config", "none", "--provider", f.url).OK(f.t) // each lasts for three seconds
		f.takes()
		return shows(f.clients[0]) && shows(f.clients[1])
	})
}
