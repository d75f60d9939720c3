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
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Real is a real API server with RBAC, on a private etcd.
type Real struct {
	t            testing.TB
	URL          string
	authority    string // a file
	data         string // etcd's directory
	etcd, server *program
	namespaces   atomic.Int64
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
	r := &Real{t: t, URL: fmt.Sprintf("https://127.0.0.1:%d", ports[2]), authority: filepath.Join(dir, "certs", "apiserver.crt"), data: filepath.Join(dir, "etcd")}
	r.etcd = start(t, ring.Program(t, "etcd"), "--data-dir", r.data, "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", ports[1]))
	key, public := filepath.Join(dir, "sa.key"), filepath.Join(dir, "sa.pub")
	writeKeys(t, key, public)
	tokens := filepath.Join(dir, "tokens.csv")
	must.Succeed(t, os.WriteFile(tokens, []byte(adminToken+`,admin,1,"system:masters"`+"\n"), 0o600))
	r.server = start(t, program, "--etcd-servers="+etcd, "--cert-dir="+filepath.Join(dir, "certs"), fmt.Sprintf("--secure-port=%d", ports[2]), "--bind-address=127.0.0.1",
		"--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+public,
		"--service-account-signing-key-file="+key, "--authorization-mode=RBAC", "--token-auth-file="+tokens, "--disable-admission-plugins=ServiceAccount")
	r.awaitReady()
	return r
}

func (r *Real) awaitReady() {
	r.t.Helper()
	await.Success(r.t, "the API server is ready", func() error {
		status, body, err := r.Do(http.MethodGet, "/readyz", adminToken, nil)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("HTTP %d: %s", status, body)
		}
		return err
	})
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

// program is a process that can be started again.
type program struct {
	t      testing.TB
	path   string
	args   []string
	cmd    *exec.Cmd
	output bytes.Buffer // of all its processes
}

// start runs a program until the test ends. Its output is shown if the test fails.
func start(t testing.TB, path string, args ...string) *program {
	t.Helper()
	p := &program{t: t, path: path, args: args}
	p.start()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text := p.output.Bytes()
			t.Logf("the end of the output of %s:\n%s", filepath.Base(path), text[max(0, len(text)-3000):])
		}
	})
	return p
}

func (p *program) start() {
	p.t.Helper()
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil)
	must.Succeed(p.t, p.cmd.Start())
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
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
// packaging/k8s-sidecar.yaml. It returns the namespace and a token of the service account.
func (r *Real) Tenant() (namespace, token string) {
	r.t.Helper()
	namespace = fmt.Sprintf("apps-%d", r.namespaces.Add(1))
	r.must(http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": namespace}})
	r.must(http.MethodPost, rbac(namespace)+"roles", shipped(r.t)["Role"])
	r.must(http.MethodPost, rbac(namespace)+"rolebindings", shipped(r.t)["RoleBinding"])
	return namespace, r.Account(namespace)
}

func rbac(namespace string) string {
	return "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/"
}

// Account makes the service account of a tenant, and returns a token of it, by TokenRequest.
func (r *Real) Account(namespace string) (token string) {
	r.t.Helper()
	account := shipped(r.t)["ServiceAccount"]
	accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	r.must(http.MethodPost, accounts, account)
	var answer struct{ Status struct{ Token string } }
	text := r.must(http.MethodPost, accounts+"/"+nameOf(account)+"/token", object{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{"expirationSeconds": 3600},
	})
	must.Succeed(r.t, json.Unmarshal(text, &answer))
	return answer.Status.Token
}

func nameOf(o object) string { return fmt.Sprint(o["metadata"].(object)["name"]) }

// Kubeconfig writes a kubeconfig for the token, and returns its path.
func (r *Real) Kubeconfig(t testing.TB, namespace, token string) string {
	t.Helper()
	return WriteKubeconfig(t, r.KubeconfigText(r.URL, namespace, token))
}

// KubeconfigText is a kubeconfig for the token, which leads to the server at that URL.
func (r *Real) KubeconfigText(url, namespace, token string) string {
	r.t.Helper()
	authority, err := os.ReadFile(r.authority)
	must.Succeed(r.t, err)
	return KubeconfigText(url, token, namespace, authority)
}
