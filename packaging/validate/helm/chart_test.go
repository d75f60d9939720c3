// Package helm holds the chart of packaging to the manifests beside it, with Helm's own
// library. It is a module of its own, as its parent is. The chart renders the same as the
// manifests, so that their tests and validation cover the chart too.
package helm

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

const chartDir = "../../helm/kazahana"

type object = map[string]any

// objects reads the documents of a text, by kind and name, without Namespaces: a release has
// one already.
func objects(t *testing.T, text string) map[string]object {
	t.Helper()
	all := map[string]object{}
	for documents := yaml.NewDecoder(strings.NewReader(text)); ; {
		var one object
		err := documents.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if one == nil || one["kind"] == "Namespace" {
			continue
		}
		name := one["kind"].(string) + " " + one["metadata"].(object)["name"].(string)
		if all[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		all[name] = one
	}
}

func manifest(t *testing.T, path string) map[string]object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, string(text))
}

// render is what helm template prints.
func render(t *testing.T, c *chart.Chart, namespace string, values object) map[string]object {
	t.Helper()
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "kazahana", Namespace: namespace, IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			text.WriteString("---\n" + files[name] + "\n")
		}
	}
	return objects(t, text.String())
}

func load(t *testing.T, dir string) *chart.Chart {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLint(t *testing.T) {
	for _, values := range []object{{}, {"leaseServer": object{"enabled": true}, "serviceAccounts": []any{"orders"}}} {
		for _, m := range lint.All(chartDir, values, "kazahana-nodes", true).Messages {
			if m.Severity >= support.WarningSev {
				t.Errorf("with %v: %v", values, m)
			}
		}
	}
}

// asManifest takes out of a rendered object what no manifest has.
func asManifest(value any) any {
	switch v := value.(type) {
	case object:
		delete(v, "imagePullPolicy")
		for _, inner := range v {
			asManifest(inner)
		}
	case []any:
		for _, inner := range v {
			asManifest(inner)
		}
	}
	return value
}

// same compares the rendered text with a manifest.
func same(t *testing.T, rendered, want map[string]object) {
	t.Helper()
	if got, names := slices.Sorted(maps.Keys(rendered)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, names) {
		t.Errorf("the chart renders %v, and the manifest has %v", got, names)
	}
	for name, one := range want {
		if got := asManifest(rendered[name]); rendered[name] != nil && !reflect.DeepEqual(got, any(one)) {
			t.Errorf("%s: the chart renders\n%v\nand the manifest has\n%v", name, got, one)
		}
	}
}

// By default the chart is k8s-daemonset.yaml; and with a lease server, k8s-lease-server.yaml.
func TestTheChartIsTheManifests(t *testing.T) {
	c := load(t, chartDir)
	daemonset := manifest(t, "k8s-daemonset.yaml")
	same(t, render(t, c, "kazahana-nodes", object{}), daemonset)
	same(t, render(t, c, "kazahana", object{"daemonset": object{"enabled": false}, "leaseServer": object{"enabled": true}}),
		manifest(t, "lease-server/k8s-lease-server.yaml"))
}

// Values reach the places that they are for.
func TestValues(t *testing.T) {
	all := render(t, load(t, chartDir), "ids", object{
		"image": object{"repository": "registry.example/kazahana", "tag": "1.2.3"}, "provider": "kubernetes:ids?pool=web", "env": object{"KAZAHANA_FALLBACK": "none"},
		"serviceAccounts": []any{"orders", "invoices"}, "daemonset": object{"quota": object{"enabled": false}},
	})
	if all["ResourceQuota kazahanad"] != nil || all["RoleBinding orders-kazahana"] == nil || all["RoleBinding invoices-kazahana"] == nil {
		t.Errorf("it renders %v", slices.Sorted(maps.Keys(all)))
	}
	text, err := yaml.Marshal(all["DaemonSet kazahanad"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"registry.example/kazahana:1.2.3", "kubernetes:ids?pool=web", "KAZAHANA_FALLBACK", "namespace: ids"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

// A chart of an application takes the sidecar from this one: it is the sidecar of
// k8s-sidecar.yaml.
func TestSidecar(t *testing.T) {
	parent := t.TempDir()
	if err := os.CopyFS(filepath.Join(parent, "charts", "kazahana"), os.DirFS(chartDir)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"Chart.yaml":  "apiVersion: v2\nname: orders\nversion: 1.0.0\ndependencies: [{name: kazahana, version: 0.1.0, repository: \"file://charts/kazahana\"}]\n",
		"values.yaml": "kazahana: {serviceAccounts: [orders], daemonset: {enabled: false}}\n",
		"templates/deployment.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: orders}
spec:
  initContainers:
    {{- include "kazahana.sidecar" .Subcharts.kazahana | nindent 4 }}
  volumes:
    {{- include "kazahana.sidecar.volumes" .Subcharts.kazahana | nindent 4 }}
`,
	} {
		path := filepath.Join(parent, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	all, want := render(t, load(t, parent), "shop", object{}), manifest(t, "k8s-sidecar.yaml")
	got := asManifest(all["Deployment orders"]["spec"]).(object)
	pod := want["Deployment orders"]["spec"].(object)["template"].(object)["spec"].(object)
	for _, part := range []string{"initContainers", "volumes"} {
		if !reflect.DeepEqual(got[part], pod[part]) {
			t.Errorf("%s: the chart renders\n%v\nand the manifest has\n%v", part, got[part], pod[part])
		}
	}
	if !reflect.DeepEqual(all["Role kazahana"]["rules"], want["Role kazahana"]["rules"]) || all["RoleBinding orders-kazahana"] == nil {
		t.Errorf("the rights are %v", all["Role kazahana"])
	}
}
