// Package apiserver validates the manifests of packaging with the API server's
// own code, which knows more than the types do: values of enumerations, names,
// ports, what may go with what. It takes minutes to build: make validate-k8s.
package apiserver

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsinstall "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	coreinstall "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	networkinginstall "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	policyinstall "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacinstall "k8s.io/kubernetes/pkg/apis/rbac/install"
	rbacvalidation "k8s.io/kubernetes/pkg/apis/rbac/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// judge decodes each document strictly, gives it the defaults that the server
// would, and validates it.
func judge(t *testing.T, manifest string) (kinds []string, problems field.ErrorList, err error) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme){appsinstall.Install, coreinstall.Install, networkinginstall.Install, policyinstall.Install, rbacinstall.Install} {
		install(scheme)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifest)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return kinds, problems, nil
		}
		if err != nil {
			return kinds, problems, err
		}
		object, kind, err := decoder.Decode(bytes.TrimSpace(document), nil, nil)
		if err != nil {
			return kinds, problems, err
		}
		kinds = append(kinds, kind.Kind)
		problems = append(problems, validate(t, object)...)
	}
}

// validate is the server's check of a new object of these kinds. An object without a namespace
// would come into the one that kubectl is set to.
func validate(t *testing.T, object runtime.Object) field.ErrorList {
	t.Helper()
	named := func(namespace *string) {
		if *namespace == "" {
			*namespace = "default"
		}
	}
	switch o := object.(type) {
	case *apps.Deployment:
		named(&o.Namespace)
		return appsvalidation.ValidateDeployment(o, corevalidation.PodValidationOptions{})
	case *apps.DaemonSet:
		named(&o.Namespace)
		return appsvalidation.ValidateDaemonSet(o, corevalidation.PodValidationOptions{})
	case *core.Service:
		named(&o.Namespace)
		return corevalidation.ValidateServiceCreate(o)
	case *core.Secret:
		// The server moves stringData to data when it decodes, too.
		named(&o.Namespace)
		return corevalidation.ValidateSecret(o)
	case *core.ResourceQuota:
		named(&o.Namespace)
		return corevalidation.ValidateResourceQuota(o)
	case *core.PersistentVolumeClaim:
		named(&o.Namespace)
		return corevalidation.ValidatePersistentVolumeClaim(o, corevalidation.PersistentVolumeClaimSpecValidationOptions{})
	case *core.ConfigMap:
		named(&o.Namespace)
		return corevalidation.ValidateConfigMap(o)
	case *core.ServiceAccount:
		named(&o.Namespace)
		return corevalidation.ValidateServiceAccount(o)
	case *rbac.Role:
		named(&o.Namespace)
		return rbacvalidation.ValidateRole(o)
	case *rbac.RoleBinding:
		named(&o.Namespace)
		return rbacvalidation.ValidateRoleBinding(o)
	case *core.Namespace:
		return corevalidation.ValidateNamespace(o)
	case *policy.PodDisruptionBudget:
		named(&o.Namespace)
		return policyvalidation.ValidatePodDisruptionBudget(o, policyvalidation.PodDisruptionBudgetValidationOptions{})
	case *networking.NetworkPolicy:
		named(&o.Namespace)
		return networkingvalidation.ValidateNetworkPolicy(o, networkingvalidation.NetworkPolicyValidationOptions{})
	}
	t.Errorf("nothing here validates a %T", object)
	return nil
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestManifests(t *testing.T) {
	files, err := filepath.Glob("../../k8s-*.yaml")
	more, _ := filepath.Glob("../../lease-server/k8s-*.yaml") // the pattern is well-formed
	if files = append(files, more...); err != nil || len(files) != 5 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	for _, file := range files {
		kinds, problems, err := judge(t, read(t, file))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, p := range problems {
			t.Errorf("%s: %v", file, p)
		}
		t.Logf("%s: %v", file, kinds)
	}
}

// What kubectl apply -k would send. PodMonitors are not the API server's own kinds: the
// module above holds them to their operator's types.
func TestKustomizations(t *testing.T) {
	for _, dir := range []string{"../../../packaging", "../../../packaging/lease-server", "../../../examples/kubernetes/lease-server", "../../../examples/kubernetes/sqlite"} {
		made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		var all []string
		for _, r := range made.Resources() {
			if r.GetKind() == "PodMonitor" {
				continue
			}
			kinds, problems, err := judge(t, r.MustYaml())
			if err != nil || len(problems) > 0 {
				t.Errorf("%s: %s %s: %v %v", dir, r.GetKind(), r.GetName(), err, problems)
			}
			all = append(all, kinds...)
		}
		if len(all) < 6 {
			t.Errorf("%s: only %v", dir, all)
		}
		t.Logf("%s: %v", dir, all)
	}
}

// Mistakes that the types let pass are found.
func TestMistakes(t *testing.T) {
	good := read(t, "../../k8s-sidecar.yaml")
	for _, change := range [][2]string{
		{"restartPolicy: Always", "restartPolicy: OnFailures"},
		{"type: RuntimeDefault", "type: Default"},
		{"name: kazahana-admin, containerPort", "name: kazahana-administration, containerPort"},
		{"mountPath: /run/kazahana}", "mountPath: /run/kazahana, subPath: ../x}"},
		{"matchLabels: {app.kubernetes.io/name: orders}\n  template", "matchLabels: {app.kubernetes.io/name: order}\n  template"},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("the manifest does not hold %q", change[0])
		}
		if _, problems, err := judge(t, bad); err == nil && len(problems) == 0 {
			t.Errorf("%q in place of %q is accepted", change[1], change[0])
		}
	}
}
