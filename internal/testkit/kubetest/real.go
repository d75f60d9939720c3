package kubetest

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Real is a real API server with RBAC, on a private etcd.
type Real struct {
	t          testing.TB
	URL        string
	authority  string // a file
	namespaces atomic.Int64
}

// realVersion is the version of packaging/validate/apiserver.
const realVersion = "1.36.2"

const adminToken = "admin"

// StartReal starts an API server, for a test of the deep ring. The first start on a machine
// builds it, which takes minutes; it then stays in the user's cache directory.
func StartReal(t testing.TB) *Real {
	t.Helper()
	program := apiServer(t)
	dir := ring.Dir(t)
	ports, err := ring.FreePorts(3)
	must.Succeed(t, err)
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	start(t, ring.Program(t, "etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", ports[1]))
	key, public := filepath.Join(dir, "sa.key"), filepath.Join(dir, "sa.pub")
	writeKeys(t, key, public)
	tokens := filepath.Join(dir, "tokens.csv")
	must.Succeed(t, os.WriteFile(tokens, []byte(adminToken+`,admin,1,"system:masters"`+"\n"), 0o600))
	start(t, program, "--etcd-servers="+etcd, "--cert-dir="+filepath.Join(dir, "certs"), fmt.Sprintf("--secure-port=%d", ports[2]), "--bind-address=127.0.0.1",
		"--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+public,
		"--service-account-signing-key-file="+key, "--authorization-mode=RBAC", "--token-auth-file="+tokens, "--disable-admission-plugins=ServiceAccount")
	r := &Real{t: t, URL: fmt.Sprintf("https://127.0.0.1:%d", ports[2]), authority: filepath.Join(dir, "certs", "apiserver.crt")}
	await.Success(t, "the API server is ready", func() error {
		status, body, err := r.Do(http.MethodGet, "/readyz", adminToken, nil)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("HTTP %d: %s", status, body)
		}
		return err
	})
	return r
}

// apiServer is the path of the program, which it builds where there is none.
func apiServer(t testing.TB) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	must.Succeed(t, err)
	path := filepath.Join(cache, "kazahana", "kube-apiserver-"+realVersion)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	module := repository("packaging", "validate", "apiserver")
	part := fmt.Sprintf("%s.%d", path, os.Getpid())
	prefix := "-X k8s.io/component-base/version."
	build := exec.Command("go", "build", "-C", module, "-trimpath", "-ldflags",
		"-s -w "+prefix+"gitVersion=v"+realVersion+" "+prefix+"gitMajor=1 "+prefix+"gitMinor=36", "-o", part, "./server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the API server: %v\n%s", err, out)
	}
	must.Succeed(t, os.Rename(part, path))
	return path
}

// start runs a program until the test ends. Its output is shown if the test fails.
func start(t testing.TB, program string, args ...string) {
	t.Helper()
	output := &bytes.Buffer{}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil)
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text := output.Bytes()
			t.Logf("the end of the output of %s:\n%s", filepath.Base(program), text[max(0, len(text)-3000):])
		}
	})
}

func writeKeys(t testing.TB, key, public string) {
	t.Helper()
	pair, err := rsa.GenerateKey(rand.Reader, 2048)
	must.Succeed(t, err)
	der, err := x509.MarshalPKIXPublicKey(&pair.PublicKey)
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(pair)}), 0o600))
	must.Succeed(t, os.WriteFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600))
}

// Do sends a request with a body in JSON; nil for none.
func (r *Real) Do(method, path, token string, body any) (status int, answer []byte, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return do(client, r.URL, method, path, token, body)
}

func do(client *http.Client, server, method, path, token string, body any) (status int, answer []byte, err error) {
	var text []byte
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return 0, nil, err
		}
	}
	req, err := http.NewRequest(method, server+path, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	return res.StatusCode, answer, err
}

// must does what an administrator may.
func (r *Real) must(method, path string, body any) []byte {
	r.t.Helper()
	status, answer, err := r.Do(method, path, adminToken, body)
	if err != nil || status > 299 {
		r.t.Fatalf("%s %s: HTTP %d, %v: %s", method, path, status, err, answer)
	}
	return answer
}

// Tenant is a namespace with the service account, the Role and the RoleBinding of
// packaging/k8s-sidecar.yaml, without some verbs. It returns the namespace and a token of
// the service account, by TokenRequest.
func (r *Real) Tenant(without ...string) (namespace, token string) {
	r.t.Helper()
	namespace = fmt.Sprintf("apps-%d", r.namespaces.Add(1))
	r.must(http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": namespace}})
	all := shipped(r.t)
	rule := all["Role"]["rules"].([]any)[0].(object)
	rule["verbs"] = slices.DeleteFunc(rule["verbs"].([]any), func(verb any) bool { return slices.Contains(without, fmt.Sprint(verb)) })
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace
	account := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	r.must(http.MethodPost, account, all["ServiceAccount"])
	r.must(http.MethodPost, rbac+"/roles", all["Role"])
	r.must(http.MethodPost, rbac+"/rolebindings", all["RoleBinding"])
	var answer struct{ Status struct{ Token string } }
	name := fmt.Sprint(all["ServiceAccount"]["metadata"].(object)["name"])
	text := r.must(http.MethodPost, account+"/"+name+"/token", object{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{"expirationSeconds": 3600},
	})
	must.Succeed(r.t, json.Unmarshal(text, &answer))
	return namespace, answer.Status.Token
}

// Kubeconfig writes a kubeconfig for the token, and returns its path.
func (r *Real) Kubeconfig(t testing.TB, namespace, token string) string {
	t.Helper()
	authority, err := os.ReadFile(r.authority)
	must.Succeed(t, err)
	return WriteKubeconfig(t, KubeconfigText(r.URL, token, namespace, authority))
}
