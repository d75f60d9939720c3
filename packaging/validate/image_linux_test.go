package validate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// patience is how long anything may take on a busy machine.
const patience = 60 * time.Second

// buildImage does by hand what the Dockerfile says, and returns the root
// directory of its image.
func buildImage(t *testing.T, i image) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kz-image-") // not t.TempDir, which others may not enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	stage := filepath.Join(dir, "build")
	if err := os.MkdirAll(filepath.Join(stage, "out"), 0o755); err != nil {
		t.Fatal(err)
	}
	inStage := strings.NewReplacer(" /out", " "+stage+"/out", " /empty", " "+stage+"/empty")
	for _, command := range i.build {
		if command == "go mod download" {
			continue
		}
		run(t, repository(t), []string{"VERSION=v1.2.3-image"}, "sh", "-ec", inStage.Replace(command))
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range i.copies {
		to := filepath.Join(root, c.to)
		run(t, dir, nil, "mkdir", "-p", to)
		run(t, dir, nil, "cp", "-a", filepath.Join(stage, c.from)+"/.", to)
		if c.owner != "" {
			run(t, dir, nil, "chown", "-R", c.owner, to)
		}
	}
	return root
}

// run runs a command that must succeed.
func run(t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// inImage is a command as a container of the image runs it: with its root, its
// user and its environment.
func inImage(i image, root string, command []string, env ...string) *exec.Cmd {
	return &exec.Cmd{
		Path: command[0], Args: command, Dir: "/", Env: append(append([]string{}, i.env...), env...),
		SysProcAttr: &syscall.SysProcAttr{
			Chroot: root, Credential: &syscall.Credential{Uid: userID, Gid: userID}, Pdeathsig: syscall.SIGKILL,
		},
	}
}

// start runs a command until the test is over or stop is called.
func start(t *testing.T, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	log := &strings.Builder{}
	cmd.Stderr, cmd.WaitDelay = log, patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", cmd.Args, err)
		}
		if t.Failed() {
			t.Logf("%v said\n%s", cmd.Args, log)
		}
	}
	t.Cleanup(stop)
	return stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// authority makes a certificate for 127.0.0.1 that signs itself.
func authority(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// The image starts without any setting, as its user, in a root that holds nothing but the
// copied files; its health check works; a lease server with a certificate of a public
// authority is trusted; and nothing is written outside of the directories that are made
// for it.
func TestImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root directory")
	}
	i := readDockerfile(t)
	root := buildImage(t, i)
	before := files(t, root)
	daemon := append(append([]string{}, i.entrypoint...), i.command...)

	stop := start(t, inImage(i, root, daemon))
	eventually(t, "the health check succeeds", func() bool { return inImage(i, root, i.healthcheck).Run() == nil })
	if got := status(t, i, root); got.Version != "v1.2.3-image" || got.Scope != "host" {
		t.Errorf("status says %+v", got)
	}
	stop()
	if err := inImage(i, root, i.healthcheck).Run(); err == nil {
		t.Error("the health check succeeds without a daemon")
	}
	// As docs/kubernetes.md mounts it: a directory in memory that is the image's user's.
	live := filepath.Join(root, "run/kazahana-live")
	run(t, root, nil, "mount", "-t", "tmpfs", "-o", "mode=0700,uid=65532,gid=65532", "tmpfs", live)
	t.Cleanup(func() { run(t, root, nil, "umount", live) })
	stop = start(t, inImage(i, root, daemon))
	eventually(t, "the daemon answers", func() bool { return status(t, i, root).Mode != "" })
	if got := status(t, i, root); !got.SurvivesKill || !strings.HasPrefix(got.LiveDir, "/run/kazahana-live/") {
		t.Errorf("status says %+v", got)
	}
	stop()
	for name := range files(t, root) {
		own := slices.ContainsFunc([]string{"/run/kazahana/", "/run/kazahana-live/", "/var/lib/kazahana/"}, func(dir string) bool { return strings.HasPrefix(name, dir) })
		if !before[name] && !own {
			t.Errorf("the daemon made %s", name)
		}
	}

	certificate, key := authority(t)
	overlaysAreAccepted(t, i, root, certificate, key)
	provider := startLeaseServer(t, root, certificate, key)
	// There is no such server with a public certificate here: one more
	// authority stands in for them.
	bundle := filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")
	appendTo(t, bundle, certificate)
	stop = start(t, inImage(i, root, daemon, "KAZAHANA_PROVIDER="+provider))
	eventually(t, "a lease is granted over TLS", func() bool { return status(t, i, root).Mode == "regular" })
	stop()
	if err := os.Remove(bundle); err != nil {
		t.Fatal(err)
	}
	start(t, inImage(i, root, daemon, "KAZAHANA_PROVIDER="+provider))
	eventually(t, "the server is not trusted without the certificates", func() bool {
		st := status(t, i, root)
		return len(st.Services) > 0 && strings.Contains(st.Services[0].Cause, "certificate")
	})
}

// overlaysAreAccepted: the image's program takes the configuration and the environment
// of each lease server that the manifests and the kustomizations make.
func overlaysAreAccepted(t *testing.T, i image, root string, certificate, key []byte) {
	t.Helper()
	mounted := filepath.Join(root, "etc/kazahana")
	config := find[*corev1.ConfigMap](t, leaseServerFile)[0].Data["lease-server.yaml"]
	for name, text := range map[string]string{
		"tls.crt": string(certificate), "tls.key": string(key), "redis-password": "secret", "lease-server.yaml": config,
		"tokens.yaml": "- {token_sha256: " + strings.Repeat("ab", 32) + ", owner: cluster, scopes: [leases]}",
	} {
		path := filepath.Join(mounted, name)
		appendTo(t, path, []byte(text))
		if err := os.Chown(path, userID, userID); err != nil {
			t.Fatal(err)
		}
	}
	providers := map[string]string{leaseServerFile: "redis://", leaseServerBase: "redis://", leaseServerOverlay: "rediss+sentinel://", sqliteOverlay: "sqlite:"}
	for file, want := range providers {
		c := find[*appsv1.Deployment](t, file, leaseServer)[0].Spec.Template.Spec.Containers[0]
		var environment []string
		for _, e := range c.Env {
			environment = append(environment, e.Name+"="+e.Value)
		}
		out, err := inImage(i, root, append([]string{i.entrypoint[0]}, append(c.Args, "--check")...), environment...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "ok: listen :7464, provider "+want) {
			t.Errorf("%s: %v: %s", file, err, out)
		}
	}
}

// startLeaseServer runs the binary outside of the image.
func startLeaseServer(t *testing.T, root string, certificate, key []byte) (url string) {
	t.Helper()
	dir := t.TempDir()
	crt, secret := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	appendTo(t, crt, certificate)
	appendTo(t, secret, key)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	start(t, exec.Command(filepath.Join(root, "usr/bin/kazahanad"), "lease-server", "--config", "none", "--listen", address,
		"--provider", "sqlite:"+dir+"/leases.db", "--tls-cert", crt, "--tls-key", secret, "--drain-delay", "0"))
	eventually(t, "the lease server listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return "https://" + address
}

func appendTo(t *testing.T, path string, text []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// daemonStatus is the checked part of kazahanad status --json.
type daemonStatus struct {
	Version, Mode, Scope string
	LiveDir              string `json:"live_dir"`
	SurvivesKill         bool   `json:"survives_kill"`
	Services             []struct{ Cause string }
}

// status asks the daemon in the image; it is empty while there is none.
func status(t *testing.T, i image, root string) (st daemonStatus) {
	t.Helper()
	out, err := inImage(i, root, []string{i.entrypoint[0], "status", "--json"}).Output()
	if err != nil {
		return st
	}
	if err := json.Unmarshal(out, &st); err != nil {
		t.Fatal(fmt.Errorf("%w in %s", err, out))
	}
	return st
}

// files are the paths below a root.
func files(t *testing.T, root string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		found[strings.TrimPrefix(path, root)] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
