// Package validate checks the files of packaging for containers: the manifests by the
// Kubernetes API types and its pod security standards, the Dockerfile by its own parser
// and by carrying it out; and the scrape jobs by Prometheus' own relabelling. It is
// a module of its own so that these are no dependencies of kazahana.
package validate

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

const (
	sidecarFile     = "../k8s-sidecar.yaml"
	daemonSetFile   = "../k8s-daemonset.yaml"
	leaseServerFile = "../lease-server/k8s-lease-server.yaml"
	secretsFile     = "../lease-server/k8s-secrets.yaml"
	numberFile      = "../k8s-replica-number.yaml"
)

// Names of workloads.
const (
	daemonSet   = "kazahanad"
	leaseServer = "kazahana-lease-server"
	numbered    = "numbered"
)

// userID is what everything runs as, user and group.
const userID = 65532

// scheme has the kinds that the manifests may use.
func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// decode reads the documents of a manifest as the API server would: unknown and
// repeated fields, and values of a wrong type, are errors.
func decode(t *testing.T, manifest []byte) (objects []runtime.Object, err error) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme(t), serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

// manifests are all objects of packaging, by file, and what Kustomize makes of them,
// by directory.
func manifests(t *testing.T) map[string][]runtime.Object {
	t.Helper()
	files, err := filepath.Glob("../k8s-*.yaml")
	more, _ := filepath.Glob("../lease-server/k8s-*.yaml") // the pattern is well-formed
	if files = append(files, more...); err != nil || len(files) != 5 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	all := map[string][]runtime.Object{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if all[file], err = decode(t, text); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	for _, dir := range kustomizations {
		if all[dir], err = decode(t, render(t, dir)); err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
	}
	return all
}

// workload is a Deployment or a DaemonSet.
type workload struct {
	file, name string
	namespace  string // "shop", if the manifest has none
	selector   *metav1.LabelSelector
	pod        corev1.PodTemplateSpec
}

func workloads(t *testing.T) (all []workload) {
	t.Helper()
	for file, objects := range manifests(t) {
		for _, object := range objects {
			switch o := object.(type) {
			case *appsv1.Deployment:
				all = append(all, workload{file, o.Name, cmp.Or(o.Namespace, "shop"), o.Spec.Selector, o.Spec.Template})
			case *appsv1.DaemonSet:
				all = append(all, workload{file, o.Name, cmp.Or(o.Namespace, "shop"), o.Spec.Selector, o.Spec.Template})
			}
		}
	}
	if len(all) != 4+4 {
		t.Fatalf("%d workloads, want the sidecar's, the DaemonSet, the numbered one and the lease server, and those of four kustomizations", len(all))
	}
	return all
}

// find returns the objects of a type in a file or directory; with a name only the one.
func find[T runtime.Object](t *testing.T, file string, name ...string) (found []T) {
	t.Helper()
	for _, object := range manifests(t)[file] {
		if o, ok := object.(T); ok && (name == nil || object.(metav1.Object).GetName() == name[0]) {
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no %T", file, *new(T))
	}
	return found
}

// containers are those of a pod, its init containers first.
func (w workload) containers() []corev1.Container {
	return slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers)
}

// The admission controller of Kubernetes itself says that the sidecar and the
// lease server run on its strictest level, and the namespaces enforce the strictest
// possible one. The DaemonSet needs a hostPath volume, and nothing else.
func TestPodSecurity(t *testing.T) {
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	for _, w := range workloads(t) {
		pod := w.pod.DeepCopy()
		if w.name == daemonSet {
			pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil })
			// What makes the directories is root, by name.
			pod.Spec.InitContainers = nil
		}
		result := policy.AggregateCheckResults(checks.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec))
		if !result.Allowed {
			t.Errorf("%s is not fit for the level restricted: %s", w.file, result.ForbiddenDetail())
		}
		// The check that was just passed can fail.
		pod.Spec.Containers[0].SecurityContext.Capabilities.Drop = nil
		if policy.AggregateCheckResults(checks.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec)).Allowed {
			t.Error("capabilities that are kept are not noticed")
		}
	}
	for file, level := range map[string]podsecurity.Level{leaseServerFile: podsecurity.LevelRestricted, daemonSetFile: podsecurity.LevelPrivileged} {
		namespace := find[*corev1.Namespace](t, file)[0]
		if got := namespace.Labels[podsecurity.EnforceLevelLabel]; got != string(level) {
			t.Errorf("%s: the namespace enforces %q, want %q", file, got, level)
		}
	}
}

// What the strictest level does not ask for and we do.
func TestContainers(t *testing.T) {
	image := imageName(t)
	for _, w := range workloads(t) {
		s := w.pod.Spec
		if !*s.SecurityContext.RunAsNonRoot || *s.SecurityContext.RunAsUser != userID ||
			*s.SecurityContext.RunAsGroup != userID || *s.SecurityContext.FSGroup != userID {
			t.Errorf("%s: the pod runs as %+v", w.file, s.SecurityContext)
		}
		// Where the program itself runs kazahanad, it has the token like every program.
		if *s.AutomountServiceAccountToken != (w.name == numbered) || *s.EnableServiceLinks || *s.TerminationGracePeriodSeconds < 20 {
			t.Errorf("%s: a service account's token in all containers, service links, or too short a grace period", w.file)
		}
		ours := 0
		for _, c := range w.containers() {
			where := w.file + ", container " + c.Name
			if !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation {
				t.Errorf("%s: %+v", where, c.SecurityContext)
			}
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: requests %v, limits %v", where, c.Resources.Requests, c.Resources.Limits)
			}
			if strings.Contains(c.Image, "kazahana") {
				ours++
				if strings.TrimPrefix(c.Image, "registry.example/") != image {
					t.Errorf("%s: image %s, and the Dockerfile makes %s", where, c.Image, image)
				}
				if c.Command != nil {
					t.Errorf("%s: it has a command in place of the image's", where)
				}
				if c.StartupProbe == nil || c.ReadinessProbe == nil || c.LivenessProbe == nil {
					t.Errorf("%s: it lacks a probe", where)
				}
			}
			volumesExist(t, where, w.pod.Spec, c)
			probesReachable(t, where, c)
		}
		want := 1
		if w.name == numbered { // the program's own image has kazahanad in it
			want = 0
		}
		if ours != want {
			t.Errorf("%s: %d containers of kazahana", w.file, ours)
		}
	}
}

// imageName is what the Dockerfile's own example calls the image.
func imageName(t *testing.T) string {
	t.Helper()
	match := regexp.MustCompile(`(?m)^#.* -t (\S+)`).FindStringSubmatch(readText(t, "../Dockerfile"))
	if match == nil {
		t.Fatal("the Dockerfile does not say how the image is called")
	}
	return match[1]
}

func volumesExist(t *testing.T, where string, spec corev1.PodSpec, c corev1.Container) {
	t.Helper()
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("%s: there is no volume %s", where, m.Name)
		}
		if m.SubPath != "" {
			t.Errorf("%s: a subPath is not updated with its volume", where)
		}
	}
}

func probesReachable(t *testing.T, where string, c corev1.Container) {
	t.Helper()
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		switch {
		case p == nil:
		case p.HTTPGet != nil:
			if !slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.Name == p.HTTPGet.Port.StrVal }) {
				t.Errorf("%s: a probe's port %s is none of its own", where, p.HTTPGet.Port.StrVal)
			}
		default:
			t.Errorf("%s: a probe is no HTTP request: each other kind costs a process or says less", where)
		}
	}
}

// The application starts after the socket answers, sees it, and outlives the
// daemon's restarts.
func TestSidecar(t *testing.T) {
	pod := find[*appsv1.Deployment](t, sidecarFile)[0].Spec.Template.Spec
	daemon, app := pod.InitContainers[0], pod.Containers[0]
	if daemon.RestartPolicy == nil || *daemon.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Error("an init container without restartPolicy Always must end before the application starts")
	}
	if got := daemon.StartupProbe.HTTPGet.Path; got != "/readyz" {
		t.Errorf("the startup probe asks %q", got)
	}
	if pod := find[*appsv1.Deployment](t, sidecarFile)[0].Spec.Template; len(pod.Annotations) > 0 {
		t.Errorf("the sidecar takes annotations of the application's pod: %v", pod.Annotations)
	}
	socket := env(daemon, "KAZAHANA_SOCKET")
	if socket == "" || socket != env(app, "KAZAHANA_SOCKET") {
		t.Errorf("the daemon's socket is %q, and the application's %q", socket, env(app, "KAZAHANA_SOCKET"))
	}
	ours, theirs := mountOf(daemon, socket), mountOf(app, socket)
	if ours == nil || theirs == nil || ours.Name != theirs.Name || ours.MountPath != theirs.MountPath || ours.ReadOnly {
		t.Fatalf("the socket's volume is mounted as %+v and %+v", ours, theirs)
	}
	if volume := volumeOf(pod, ours).EmptyDir; volume == nil || volume.Medium != corev1.StorageMediumMemory || volume.SizeLimit == nil {
		t.Errorf("the socket's volume is %+v", volumeOf(pod, ours))
	}
	used := map[string]bool{ours.Name: true}
	for _, variable := range []string{"KAZAHANA_STATE_DIR", "KAZAHANA_LIVE_DIR"} {
		mount := mountOf(daemon, env(daemon, variable))
		if mount == nil || used[mount.Name] {
			t.Fatalf("%s has no volume of its own: %+v", variable, mount)
		}
		used[mount.Name] = true
		if volume := volumeOf(pod, mount).EmptyDir; volume == nil || volume.Medium != corev1.StorageMediumMemory || volume.SizeLimit == nil || volume.SizeLimit.Value() > 8<<20 {
			t.Errorf("the volume of %s is %+v", variable, volumeOf(pod, mount))
		}
		if mount.MountPath == env(daemon, variable) {
			t.Errorf("%s is the volume's root, to which everybody may write", variable)
		}
		mustBePrivate(t, pod, daemon.Name, mount.Name)
	}
}

// mustBePrivate: no other container sees the volume, which holds secrets of leases
// or says which of them are the daemon's.
func mustBePrivate(t *testing.T, pod corev1.PodSpec, daemon, volume string) {
	t.Helper()
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if c.Name != daemon && slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
			t.Errorf("container %s sees the volume %s, which is the daemon's alone", c.Name, volume)
		}
	}
}

// volumeOf is the volume that is mounted.
func volumeOf(pod corev1.PodSpec, mount *corev1.VolumeMount) corev1.Volume {
	return pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })]
}

// A new pod of the DaemonSet goes on with what the old one left on the node: the
// state on its disk, the leases in its memory. The container that makes the
// directories makes each that the daemon uses.
func TestDaemonSet(t *testing.T) {
	pod := find[*appsv1.DaemonSet](t, daemonSetFile)[0].Spec.Template.Spec
	maker, daemon := pod.InitContainers[0], pod.Containers[0]
	for _, path := range []string{"/run/kazahana", env(daemon, "KAZAHANA_STATE_DIR"), env(daemon, "KAZAHANA_LIVE_DIR")} {
		mount := mountOf(daemon, path)
		if mount == nil || mount.MountPath != path {
			t.Fatalf("%s is mounted as %+v", path, mount)
		}
		if host := volumeOf(pod, mount).HostPath; host == nil || host.Path != path || *host.Type != corev1.HostPathDirectoryOrCreate {
			t.Errorf("%s is %+v on the node", path, host)
		}
		if made := mountOf(maker, path); made == nil || made.Name != mount.Name || !strings.Contains(maker.Args[0], path) {
			t.Errorf("%s is not given to the daemon's user", path)
		}
	}
	if live := env(daemon, "KAZAHANA_LIVE_DIR"); !strings.HasPrefix(live, "/run/") {
		t.Errorf("the live directory %s is not in the node's memory", live)
	}
}

// env is the value of a variable.
func env(c corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// mountOf is what a path lies in.
func mountOf(c corev1.Container, path string) *corev1.VolumeMount {
	for i, m := range c.VolumeMounts {
		if path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/") {
			return &c.VolumeMounts[i]
		}
	}
	return nil
}

// Everything that a manifest refers to by its name is there.
func TestReferences(t *testing.T) {
	secrets := map[string]*corev1.Secret{}
	for _, s := range find[*corev1.Secret](t, secretsFile) {
		secrets[s.Name] = s
		for key, value := range s.StringData {
			if !strings.Contains(value, "REPLACE_WITH_") {
				t.Errorf("Secret %s holds a value for %s that somebody could use", s.Name, key)
			}
		}
	}
	config := find[*corev1.ConfigMap](t, leaseServerFile)[0]
	for _, w := range workloads(t) {
		mustSelect(t, w.file+": its own selector", w.selector, w.pod.Labels)
		for _, v := range w.pod.Spec.Volumes {
			switch {
			case v.Secret != nil && secrets[v.Secret.SecretName] == nil:
				t.Errorf("%s: there is no Secret %s", w.file, v.Secret.SecretName)
			case v.Secret != nil && *v.Secret.DefaultMode&0o007 != 0:
				t.Errorf("%s: everybody in the pod can read Secret %s", w.file, v.Secret.SecretName)
			case v.PersistentVolumeClaim != nil:
				find[*corev1.PersistentVolumeClaim](t, w.file, v.PersistentVolumeClaim.ClaimName)
			case v.Projected != nil:
				for _, source := range v.Projected.Sources {
					if source.ConfigMap != nil && source.ConfigMap.Name != config.Name && source.ConfigMap.Name != clusterAuthority {
						t.Errorf("%s: there is no ConfigMap %s", w.file, source.ConfigMap.Name)
					}
					if source.Secret == nil {
						continue
					}
					for _, item := range source.Secret.Items {
						if s := secrets[source.Secret.Name]; s == nil || s.StringData[item.Key] == "" {
							t.Errorf("%s: there is no Secret %s with the key %s", w.file, source.Secret.Name, item.Key)
						}
					}
				}
			}
		}
	}
}

func mustSelect(t *testing.T, what string, selector *metav1.LabelSelector, pod map[string]string) {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || s.Empty() || !s.Matches(labels.Set(pod)) {
		t.Errorf("%s does not select %v: %v, %v", what, pod, s, err)
	}
}

// clusterAuthority is the ConfigMap that Kubernetes makes in every namespace.
const clusterAuthority = "kube-root-ca.crt"

// Each workload that leases from the API server has, in its own file, the right to do so and
// no other one; and the token is where a pod's programs look for it, in the container of
// kazahanad alone.
func TestRights(t *testing.T) {
	for file, name := range map[string]string{sidecarFile: "kazahanad", daemonSetFile: "kazahanad", numberFile: "app", base: "kazahanad"} {
		var w workload
		for _, one := range workloads(t) {
			if one.file == file {
				w = one
			}
		}
		account := find[*corev1.ServiceAccount](t, file)[0]
		role, binding := find[*rbacv1.Role](t, file)[0], find[*rbacv1.RoleBinding](t, file)[0]
		want := rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "list", "create", "update"}}
		if len(role.Rules) != 1 || !reflect.DeepEqual(role.Rules[0], want) {
			t.Errorf("%s: the Role is %+v", file, role.Rules)
		}
		if binding.RoleRef != (rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}) ||
			len(binding.Subjects) != 1 || binding.Subjects[0] != (rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: account.Name}) {
			t.Errorf("%s: the RoleBinding binds %+v to %+v", file, binding.Subjects, binding.RoleRef)
		}
		if w.pod.Spec.ServiceAccountName != account.Name || account.Namespace != role.Namespace || role.Namespace != binding.Namespace {
			t.Errorf("%s: the pod's service account is %s, and the Role is %s's in %q", file, w.pod.Spec.ServiceAccountName, account.Name, role.Namespace)
		}
		for _, c := range w.containers() {
			provider := env(c, "KAZAHANA_PROVIDER")
			if c.Name == name && !strings.HasPrefix(provider, "kubernetes:") || c.Name != name && provider != "" {
				t.Errorf("%s: the provider of container %s is %q", file, c.Name, provider)
			}
			mount := mountOf(c, "/var/run/secrets/kubernetes.io/serviceaccount")
			if inPod := w.name == numbered; (mount != nil) != (c.Name == name && !inPod) {
				t.Errorf("%s: container %s has the token's volume as %+v", file, c.Name, mount)
			}
			if mount != nil {
				holdsAccount(t, file, volumeOf(w.pod.Spec, mount))
			}
		}
		network := find[*networkingv1.NetworkPolicy](t, file)[0]
		mustSelect(t, file+": the NetworkPolicy", &network.Spec.PodSelector, w.pod.Labels)
	}
}

// holdsAccount: a volume has what Kubernetes gives a pod with a service account.
func holdsAccount(t *testing.T, file string, volume corev1.Volume) {
	t.Helper()
	var paths []string
	for _, source := range volume.Projected.Sources {
		switch {
		case source.ServiceAccountToken != nil:
			paths = append(paths, source.ServiceAccountToken.Path)
		case source.ConfigMap != nil && source.ConfigMap.Name == clusterAuthority:
			paths = append(paths, source.ConfigMap.Items[0].Path)
		case source.DownwardAPI != nil && source.DownwardAPI.Items[0].FieldRef.FieldPath == "metadata.namespace":
			paths = append(paths, source.DownwardAPI.Items[0].Path)
		}
	}
	if !slices.Equal(paths, []string{"token", "ca.crt", "namespace"}) || *volume.Projected.DefaultMode&0o007 != 0 {
		t.Errorf("%s: the volume of the token holds %v", file, paths)
	}
}

// The daemons reach the lease server, where they are given its URL: by the Service's name and
// port, past its NetworkPolicy; and a drain leaves one of it.
func TestLeaseServerIsReached(t *testing.T) {
	deployment := find[*appsv1.Deployment](t, leaseServerFile)[0]
	pod := deployment.Spec.Template
	service := find[*corev1.Service](t, leaseServerFile)[0]
	mustSelect(t, "the Service", &metav1.LabelSelector{MatchLabels: service.Spec.Selector}, pod.Labels)
	port := pod.Spec.Containers[0].Ports[0]
	if service.Spec.Ports[0].TargetPort != intstr.FromString(port.Name) {
		t.Errorf("the Service leads to port %v, the container's is %s", service.Spec.Ports[0].TargetPort, port.Name)
	}
	url := fmt.Sprintf("https://%s.%s.svc:%d?", service.Name, service.Namespace, service.Spec.Ports[0].Port)
	if page := readText(t, "../../docs/kubernetes.md"); !strings.Contains(page, url) {
		t.Errorf("docs/kubernetes.md does not give the URL %s", url)
	}
	network := find[*networkingv1.NetworkPolicy](t, leaseServerFile)[0]
	mustSelect(t, "the NetworkPolicy", &network.Spec.PodSelector, pod.Labels)
	if got := network.Spec.Ingress[0].Ports[0].Port.IntValue(); got != int(port.ContainerPort) {
		t.Errorf("the NetworkPolicy opens port %d, the container's is %d", got, port.ContainerPort)
	}
	for _, w := range workloads(t) {
		if w.name != leaseServer && w.name != numbered {
			mustSelect(t, "who the NetworkPolicy lets in", network.Spec.Ingress[0].From[0].PodSelector, w.pod.Labels)
		}
	}
	budget := find[*policyv1.PodDisruptionBudget](t, leaseServerFile)[0]
	mustSelect(t, "the PodDisruptionBudget", budget.Spec.Selector, pod.Labels)
	if budget.Spec.MaxUnavailable.IntValue() >= int(*deployment.Spec.Replicas) {
		t.Error("a drain may stop all lease servers")
	}
}

// Two lease servers share no node and, as far as possible, no zone; a node that is
// drained does not keep a new one from its place.
func TestSpread(t *testing.T) {
	for _, w := range workloads(t) {
		if w.name != leaseServer {
			continue
		}
		spread := map[string]corev1.TopologySpreadConstraint{}
		for _, c := range w.pod.Spec.TopologySpreadConstraints {
			mustSelect(t, w.file+": "+c.TopologyKey, c.LabelSelector, w.pod.Labels)
			if c.MaxSkew != 1 || c.NodeTaintsPolicy == nil || *c.NodeTaintsPolicy != corev1.NodeInclusionPolicyHonor {
				t.Errorf("%s: %+v", w.file, c)
			}
			spread[c.TopologyKey] = c
		}
		if spread[corev1.LabelHostname].WhenUnsatisfiable != corev1.DoNotSchedule || spread[corev1.LabelTopologyZone].WhenUnsatisfiable != corev1.ScheduleAnyway {
			t.Errorf("%s: it spreads as %+v", w.file, w.pod.Spec.TopologySpreadConstraints)
		}
	}
}

// The quota that lets the DaemonSet have its priority class is of that class.
func TestQuotaOfThePriorityClass(t *testing.T) {
	class := find[*appsv1.DaemonSet](t, daemonSetFile)[0].Spec.Template.Spec.PriorityClassName
	quota := find[*corev1.ResourceQuota](t, daemonSetFile)[0]
	scope := quota.Spec.ScopeSelector.MatchExpressions[0]
	if scope.ScopeName != corev1.ResourceQuotaScopePriorityClass || !slices.Equal(scope.Values, []string{class}) || quota.Namespace != "kazahana-nodes" {
		t.Errorf("the class is %s, the quota %+v", class, quota.Spec)
	}
}
