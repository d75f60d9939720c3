package kubetest

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// repository is the path of a file of the repository, in which the test runs.
func repository(path ...string) string {
	name := filepath.Join(path...)
	for dir := ".."; len(dir) < 64; dir = filepath.Join(dir, "..") {
		if found, err := filepath.Abs(filepath.Join(dir, name)); err == nil {
			if _, err = os.Stat(found); err == nil {
				return found
			}
		}
	}
	return name
}

// object is one of the API's, as JSON or YAML have it.
type object = map[string]any

// documents are the objects of a manifest.
func documents(t testing.TB, text []byte) (all []object) {
	t.Helper()
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var one object
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		must.Succeed(t, err)
		all = append(all, one)
	}
}

// shipped are the objects of packaging/k8s-sidecar.yaml, by kind.
func shipped(t testing.TB) map[string]object {
	t.Helper()
	text, err := os.ReadFile(repository("packaging", "k8s-sidecar.yaml"))
	must.Succeed(t, err)
	all := map[string]object{}
	for _, one := range documents(t, text) {
		all[fmt.Sprint(one["kind"])] = one
	}
	return all
}

// Verbs returns the verbs that the Role of packaging/k8s-sidecar.yaml gives on leases.
func Verbs(t testing.TB) (verbs []string) {
	t.Helper()
	rules := shipped(t)["Role"]["rules"].([]any)
	if len(rules) != 1 {
		t.Fatalf("the shipped Role has %d rules", len(rules))
	}
	for _, verb := range rules[0].(object)["verbs"].([]any) {
		verbs = append(verbs, fmt.Sprint(verb))
	}
	return verbs
}

// KubeconfigText is a kubeconfig. authority is in PEM; nil for none.
func KubeconfigText(server, token, namespace string, authority []byte) string {
	trusted := ""
	if authority != nil {
		trusted = ", certificate-authority-data: " + base64.StdEncoding.EncodeToString(authority)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q%s}}]
users: [{name: test, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: test, namespace: %q}}]
`, server, trusted, token, namespace)
}

// WriteKubeconfig writes a kubeconfig, and returns its path.
func WriteKubeconfig(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
