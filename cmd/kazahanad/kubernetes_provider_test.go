package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/kubetest"
)

// A daemon, `leases`, `run` and `doctor` work with a kubeconfig and the verbs of the Role
// alone. Locks and sequences have no place there until a store is named.
func TestKubernetesProvider(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	api := kubetest.NewServer(t, nil)
	api.Allow("daemon", kubetest.Verbs(t)...)
	url := "kubernetes:apps?kubeconfig=" + api.Kubeconfig(t, "daemon")
	d := s.Start("--provider", url, "--admin-listen", "unix:"+s.Path("admin.sock"))
	held := s.Dial().Lease()
	if _, text := s.Get("/metrics"); !strings.Contains(text, `kazahana_store_fenced_until_timestamp_seconds{file="kubernetes:apps"} 0`) {
		t.Error("the metrics do not say whether the pool is fenced")
	}
	if text := s.Kazahanad("leases", "--config", "none", "--provider", url).OK(t); !strings.Contains(text, fmt.Sprint(held.MachineID)) {
		t.Errorf("leases prints\n%s", text)
	}
	s.Kazahanad("seq", "orders").Fails(t, exitUsage, "NO_STORE", "store", "kubernetes:")
	s.Kazahanad("lock", "-q", "k", "--", "true").Fails(t, exitUsage, "NO_STORE")
	s.Examined(nil, "--provider", url).Has("provider ok", "scope ok", "no provider fail")
	if got := s.Kazahanad("run", "--provider", url, "--", "sh", "-c", "test {} -ge 0"); got.Code != exitOK {
		t.Errorf("run: %d, %s", got.Code, got.Stderr)
	}
	d.Terminate()
	for name, object := range api.Snapshot().Objects {
		if holder := object.Spec.HolderIdentity; holder != nil {
			t.Errorf("%s is held by %q after all have ended", name, *holder)
		}
	}
	api.Allow("daemon", "get", "list")
	found := s.Examined(nil, "--provider", url)
	found.Has("provider fail", "no provider ok")
	if text := fmt.Sprint(found.Findings); !strings.Contains(text, `verbs: ["create","update"]`) {
		t.Errorf("the missing rule is not in %s", text)
	}
	s.Kazahanad("leases", "init", "--config", "none", "--provider", url+"&pool=new").Fails(t, exitFailure, "the missing rule of the Role is", `["coordination.k8s.io"]`, `"create"`)
	d = s.Start("--provider", url, "--store", "sqlite:"+s.Path("store.db"))
	s.Kazahanad("seq", "orders").OK(t)
	d.Terminate()
}
