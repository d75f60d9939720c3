package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/kubetest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Fifty daemons lease from a real API server with the rights of the shipped Role, and make a
// million IDs. Ten of them are killed and started again. No two IDs are equal, all are regular,
// and the Lease objects show who holds what.
func TestKubernetesRealServer(t *testing.T) {
	ring.Deep(t)
	const daemons, killed, batches = 50, 10, 20
	real := kubetest.StartReal(t)
	namespace, token := real.Tenant()
	url := "kubernetes:?kubeconfig=" + real.Kubeconfig(t, namespace, token)
	var sites []*site
	var running []*testkit.Instance
	args := []string{"--provider", url, "--fallback", "none"}
	for range daemons {
		s := newSite(t)
		sites, running = append(sites, s), append(running, s.Launch(args...))
	}
	var ids []uint64
	take := func(s *site, batches int) {
		c := s.Dial()
		c.AwaitMode("regular") // on a busy machine the first lease comes late
		for range batches {
			ids = append(ids, c.IDs(testkit.LargestBatch)...)
		}
	}
	for i, s := range sites {
		running[i].AwaitReady()
		take(s, batches)
	}
	for i := range killed {
		held := sites[i].Dial().Lease().MachineID
		running[i].Kill()
		running[i] = sites[i].Start(args...)
		take(sites[i], 1)
		if again := sites[i].Dial().Lease().MachineID; again != held {
			t.Errorf("after the restart a daemon has machine ID %d, before it had %d", again, held)
		}
	}
	n, first := testkit.Duplicates(ids)
	t.Logf("%d IDs of %d daemons, %d equal", len(ids), daemons, n)
	if n > 0 || len(ids) < daemons*batches*testkit.LargestBatch {
		t.Errorf("the first ID that came twice is %d", first)
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct {
				HolderIdentity, RenewTime string
				LeaseTransitions          int
			}
		}
	}
	status, text, err := real.Do(http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases?labelSelector=app.kubernetes.io%2Fmanaged-by%3Dkazahana", token, nil)
	must.Succeed(t, err)
	must.Succeed(t, json.Unmarshal(text, &list))
	holders, rows := 0, []string{fmt.Sprintf("%-24s %-20s %-28s %s", "NAME", "HOLDER", "RENEWED", "GRANTS")}
	for _, l := range list.Items {
		if l.Spec.HolderIdentity != "" {
			holders++
		}
		rows = append(rows, fmt.Sprintf("%-24s %-20s %-28s %d", l.Metadata.Name, l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.LeaseTransitions))
	}
	if status != http.StatusOK || holders != daemons {
		t.Errorf("HTTP %d: %d of %d Lease objects have a holder", status, holders, len(list.Items))
	}
	t.Logf("%d Lease objects with the label\n%s", len(list.Items), strings.Join(rows[:min(len(rows), 6)], "\n"))
	said := sites[0].Kazahanad("leases", "--config", "none", "--provider", url).OK(t)
	t.Log("\n" + strings.Join(strings.SplitAfterN(said, "\n", 5)[:4], ""))
}
