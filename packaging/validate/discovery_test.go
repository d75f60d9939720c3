package validate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v2"
	corev1 "k8s.io/api/core/v1"
)

// targets are what Prometheus' role "pod" makes of a workload's pod: one for each port
// of each container, init containers too.
func (w workload) targets(phase corev1.PodPhase) (all []labels.Labels) {
	for _, c := range w.containers() {
		for _, port := range c.Ports {
			of := map[string]string{
				"__address__": fmt.Sprintf("10.0.0.1:%d", port.ContainerPort), "__meta_kubernetes_namespace": w.namespace,
				"__meta_kubernetes_pod_name": w.name, "__meta_kubernetes_pod_node_name": "node-7", "__meta_kubernetes_pod_phase": string(phase),
				"__meta_kubernetes_pod_container_name": c.Name, "__meta_kubernetes_pod_container_port_name": port.Name,
			}
			for name, value := range w.pod.Labels {
				of["__meta_kubernetes_pod_label_"+strings.NewReplacer(".", "_", "/", "_", "-", "_").Replace(name)] = value
			}
			all = append(all, labels.FromMap(of))
		}
	}
	return all
}

// The sample of scrape jobs finds each daemon and lease server, at its own port, in
// the jobs that the alerts select; no port of an application, and no pod that ended.
func TestScrapeJobs(t *testing.T) {
	var config struct {
		Jobs []struct {
			Name      string `yaml:"job_name"`
			Discovery []struct {
				Role       string
				Namespaces struct{ Names []string }
			} `yaml:"kubernetes_sd_configs"`
			Rules []*relabel.Config `yaml:"relabel_configs"`
		} `yaml:"scrape_configs"`
	}
	text := readText(t, "../prometheus/kubernetes.yaml")
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"kazahana":              {"kazahana-nodes/kazahanad 10.0.0.1:9746 node-7", "shop/orders 10.0.0.1:9746 node-7"},
		"kazahana-lease-server": {"kazahana/kazahana-lease-server 10.0.0.1:7464 node-7"},
	}
	if len(config.Jobs) != len(want) {
		t.Fatalf("%d jobs", len(config.Jobs))
	}
	for _, job := range config.Jobs {
		for _, rule := range job.Rules {
			rule.NameValidationScheme = model.UTF8Validation
			if err := rule.Validate(model.UTF8Validation); err != nil {
				t.Fatalf("%s: %v", job.Name, err)
			}
		}
		var got []string
		for _, w := range workloads(t) {
			if names := job.Discovery[0].Namespaces.Names; strings.HasPrefix(w.file, "../../") || names != nil && !slices.Contains(names, w.namespace) {
				continue
			}
			for _, target := range w.targets(corev1.PodRunning) {
				if found, keep := relabel.Process(target, job.Rules...); keep {
					got = append(got, found.Get("namespace")+"/"+found.Get("pod")+" "+found.Get("__address__")+" "+found.Get("node"))
				}
			}
			for _, target := range w.targets(corev1.PodFailed) {
				if _, keep := relabel.Process(target, job.Rules...); keep {
					t.Errorf("%s has ended, and is found", w.name)
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want[job.Name]) {
			t.Errorf("%s finds %q, want %q", job.Name, got, want[job.Name])
		}
	}
}
