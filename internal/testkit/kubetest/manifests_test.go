package kubetest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// apply has the server take the objects, and returns what it says against them. Namespaces are made; for
// the rest it only says what it would do.
func (r *Real) apply(all []object) (against []string) {
	for _, o := range all {
		version, kind := fmt.Sprint(o["apiVersion"]), fmt.Sprint(o["kind"])
		path := "/apis/" + version
		if version == "v1" {
			path = "/api/v1"
		}
		if kind == "Namespace" {
			path += "/namespaces"
		} else {
			namespace := o["metadata"].(object)["namespace"]
			if namespace == nil {
				namespace = "shop"
			}
			plural := strings.Replace(strings.ToLower(kind)+"s", "policys", "policies", 1)
			path += fmt.Sprintf("/namespaces/%s/%s?dryRun=All&fieldValidation=Strict", namespace, plural)
		}
		status, answer, err := r.Do(http.MethodPost, path, adminToken, o)
		if err != nil || status != http.StatusCreated {
			against = append(against, fmt.Sprintf("%s %v: HTTP %d, %v: %s", kind, o["metadata"], status, err, answer))
		}
	}
	return against
}

// The real API server knows more than the types do: values of enumerations, names, ports, what may go
// with what. It takes the manifests of packaging, and finds mistakes in them.
func TestManifests(t *testing.T) {
	ring.Deep(t)
	r := StartReal(t)
	r.must(http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": "shop"}})
	files, err := filepath.Glob(repository("packaging") + "/k8s-*.yaml")
	more, _ := filepath.Glob(repository("packaging") + "/lease-server/k8s-*.yaml") // the pattern is well-formed
	if files = append(files, more...); err != nil || len(files) != 5 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		if against := r.apply(documents(t, text)); len(against) > 0 {
			t.Errorf("%s:\n%s", file, strings.Join(against, "\n"))
		}
	}
	text, err := os.ReadFile(repository("packaging", "k8s-sidecar.yaml"))
	must.Succeed(t, err)
	for _, change := range [][2]string{
		{"restartPolicy: Always", "restartPolicy: OnFailures"},
		{"periodSeconds: 1\n", "periodSecond: 1\n"},
		{"type: RuntimeDefault", "type: Default"},
		{"name: kazahana-admin, containerPort", "name: kazahana-administration, containerPort"},
		{"mountPath: /run/kazahana}", "mountPath: /run/kazahana, subPath: ../x}"},
		{"matchLabels: {app.kubernetes.io/name: orders}\n  template", "matchLabels: {app.kubernetes.io/name: order}\n  template"},
	} {
		bad := strings.Replace(string(text), change[0], change[1], 1)
		if bad == string(text) {
			t.Fatalf("the manifest does not hold %q", change[0])
		}
		if len(r.apply(documents(t, []byte(bad)))) == 0 {
			t.Errorf("%q in place of %q is accepted", change[1], change[0])
		}
	}
}
