package validate

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const (
	base               = "../../packaging"
	leaseServerBase    = "../../packaging/lease-server"
	leaseServerOverlay = "../../examples/kubernetes/lease-server"
	sqliteOverlay      = "../../examples/kubernetes/sqlite"
)

// kustomizations are the directories that kubectl apply -k takes.
var kustomizations = []string{base, leaseServerBase, leaseServerOverlay, sqliteOverlay}

// render is what kubectl kustomize prints.
func render(t *testing.T, dir string) []byte {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A base is its manifest as it is, each object once.
func TestBases(t *testing.T) {
	for dir, file := range map[string]string{base: daemonSetFile, leaseServerBase: leaseServerFile} {
		rendered, want := manifests(t)[dir], manifests(t)[file]
		if len(rendered) != len(want) {
			t.Errorf("%s: %d objects, the manifest has %d", dir, len(rendered), len(want))
		}
		for _, w := range want {
			if !slices.ContainsFunc(rendered, func(r runtime.Object) bool { return reflect.DeepEqual(r, w) }) {
				t.Errorf("%s: %T %s is missing or was changed", dir, w, w.(metav1.Object).GetName())
			}
		}
	}
}

// The overlay has the replicas that it says.
func TestLeaseServerOverlay(t *testing.T) {
	if n := *find[*appsv1.Deployment](t, leaseServerOverlay)[0].Spec.Replicas; n != 3 {
		t.Errorf("%d replicas", n)
	}
}

// One server has the file, on a volume; a part that is left out is not asked for.
func TestSQLiteOverlay(t *testing.T) {
	server := find[*appsv1.Deployment](t, sqliteOverlay)[0].Spec
	if *server.Replicas != 1 || server.Strategy.Type != appsv1.RecreateDeploymentStrategyType || server.Strategy.RollingUpdate != nil {
		t.Errorf("two servers may have the file open: %d replicas, %+v", *server.Replicas, server.Strategy)
	}
	pod := server.Template.Spec
	for variable, want := range map[string]func(corev1.VolumeSource) bool{
		"KAZAHANA_PROVIDER": func(v corev1.VolumeSource) bool { return v.PersistentVolumeClaim != nil },
		"KAZAHANA_LIVE_DIR": func(v corev1.VolumeSource) bool {
			return v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory
		},
	} {
		path := strings.TrimPrefix(env(pod.Containers[0], variable), "sqlite:")
		mount := mountOf(pod.Containers[0], path)
		if mount == nil || !want(volumeOf(pod, mount).VolumeSource) {
			t.Errorf("%s is %s, mounted as %+v", variable, path, mount)
		}
	}
	for _, object := range manifests(t)[sqliteOverlay] {
		if _, ok := object.(*policyv1.PodDisruptionBudget); ok {
			t.Error("a budget for a single pod is left")
		}
	}
	for _, source := range pod.Volumes[0].Projected.Sources {
		if source.Secret != nil && slices.ContainsFunc(source.Secret.Items, func(k corev1.KeyToPath) bool { return k.Key == "redis-password" }) {
			t.Error("it waits for the password of a Redis that is not there")
		}
	}
}

// Each PodMonitor finds its pods and the port on them, and its jobs have the names
// that the alerts select.
func TestPodMonitors(t *testing.T) {
	jobs := map[string]string{"kazahana": "kazahana", leaseServer: "kazahana-lease-server"}
	for _, monitor := range find[*monitoringv1.PodMonitor](t, leaseServerOverlay) {
		selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		endpoint := monitor.Spec.PodMetricsEndpoints[0]
		var found []string
		for _, w := range workloads(t) {
			if !selector.Matches(labels.Set(w.pod.Labels)) {
				continue
			}
			found = append(found, w.name)
			if !slices.ContainsFunc(w.containers(), func(c corev1.Container) bool {
				return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == *endpoint.Port })
			}) {
				t.Errorf("%s: %s has no port %s", monitor.Name, w.name, *endpoint.Port)
			}
		}
		if want := map[string]string{"kazahana": "orders", leaseServer: leaseServer}[monitor.Name]; !slices.Contains(found, want) {
			t.Errorf("%s finds %q, and not %s", monitor.Name, found, want)
		}
		if !slices.ContainsFunc(endpoint.RelabelConfigs, func(c monitoringv1.RelabelConfig) bool {
			return c.TargetLabel == "job" && *c.Replacement == jobs[monitor.Name]
		}) {
			t.Errorf("%s does not name its job %s", monitor.Name, jobs[monitor.Name])
		}
	}
}
