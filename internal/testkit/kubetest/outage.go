package kubetest

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Kill kills the API server.
func (r *Real) Kill() { r.server.kill() }

// Revive starts the API server that was killed.
func (r *Real) Revive() {
	r.t.Helper()
	r.server.start()
	r.awaitReady()
}

// Freeze stops the API server: it takes connections, and answers nothing until thaw.
func (r *Real) Freeze() (thaw func()) {
	r.t.Helper()
	must.Succeed(r.t, r.server.cmd.Process.Signal(syscall.SIGSTOP))
	await.Stopped(r.t, r.server.cmd.Process.Pid)
	return func() { must.Succeed(r.t, r.server.cmd.Process.Signal(syscall.SIGCONT)) }
}

// Snapshot copies what etcd has. putBack starts both servers from the copy.
func (r *Real) Snapshot() (putBack func()) {
	r.t.Helper()
	copied := filepath.Join(ring.Dir(r.t), "etcd")
	r.restart(func() { must.Succeed(r.t, os.CopyFS(copied, os.DirFS(r.data))) })
	return func() {
		r.t.Helper()
		r.restart(func() {
			must.Succeed(r.t, os.RemoveAll(r.data))
			must.Succeed(r.t, os.CopyFS(r.data, os.DirFS(copied)))
		})
	}
}

// restart ends both servers, and starts them again.
func (r *Real) restart(meanwhile func()) {
	r.t.Helper()
	r.server.kill()
	r.etcd.kill()
	meanwhile()
	r.etcd.start()
	r.Revive()
}

// Forbid takes verbs from the Role of a tenant; it has all others. It returns when the server knows.
func (r *Real) Forbid(namespace string, verbs ...string) {
	r.t.Helper()
	role := shipped(r.t)["Role"]
	rule := role["rules"].([]any)[0].(object)
	rule["verbs"] = slices.DeleteFunc(rule["verbs"].([]any), func(verb any) bool { return slices.Contains(verbs, fmt.Sprint(verb)) })
	r.must(http.MethodPut, rbac(namespace)+"roles/"+nameOf(role), role)
	account := fmt.Sprintf("system:serviceaccount:%s:%s", namespace, nameOf(shipped(r.t)["ServiceAccount"]))
	for _, verb := range Verbs(r.t) {
		await.Eventually(r.t, "the server knows the Role", func() bool {
			var review authorizationv1.SubjectAccessReview
			must.Succeed(r.t, json.Unmarshal(r.must(http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", object{
				"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": object{
					"user": account, "resourceAttributes": object{"namespace": namespace, "verb": verb, "group": coordinationv1.GroupName, "resource": "leases"},
				},
			}), &review))
			return review.Status.Allowed != slices.Contains(verbs, verb)
		})
	}
}

// Revoke ends the tokens of a tenant's service account, with the account.
func (r *Real) Revoke(namespace string) {
	r.t.Helper()
	r.must(http.MethodDelete, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+nameOf(shipped(r.t)["ServiceAccount"]), nil)
}

// Overload has the server answer most requests of a tenant with 429, until end: its requests have a
// priority level of their own, of which one is carried out at a time, and some others always come before.
func (r *Real) Overload(namespace, token string) (end func()) {
	r.t.Helper()
	const api = "/apis/flowcontrol.apiserver.k8s.io/v1/"
	r.must(http.MethodPost, api+"prioritylevelconfigurations", object{
		"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": object{"name": namespace},
		"spec": object{"type": "Limited", "limited": object{
			"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": object{"type": "Reject"},
		}},
	})
	all := []string{"*"}
	r.must(http.MethodPost, api+"flowschemas", object{
		"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": object{"name": namespace},
		"spec": object{"priorityLevelConfiguration": object{"name": namespace}, "matchingPrecedence": 2, "rules": []object{{
			"subjects":      []object{{"kind": "Group", "group": object{"name": "system:serviceaccounts:" + namespace}}},
			"resourceRules": []object{{"verbs": all, "apiGroups": all, "resources": all, "namespaces": all}},
		}}},
	})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 8}}
	over := make(chan struct{})
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					_, _, _ = do(client, r.URL, http.MethodGet, root+namespace+"/leases", token, nil)
				}
			}
		})
	}
	return func() {
		r.t.Helper()
		close(over)
		others.Wait()
		client.CloseIdleConnections()
		r.must(http.MethodDelete, api+"flowschemas/"+namespace, nil)
		r.must(http.MethodDelete, api+"prioritylevelconfigurations/"+namespace, nil)
	}
}
