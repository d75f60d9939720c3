package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kazahana/kazahana/internal/folder"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/kubetest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// manifest is a document of packaging/k8s-*.yaml, in the parts that are run here.
// That it is one Kubernetes takes, packaging/validate tests.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Template struct{ Spec podSpec }
	}
	Data       map[string]string
	StringData map[string]string `yaml:"stringData"`
}

type podSpec struct {
	InitContainers []container `yaml:"initContainers"`
	Containers     []container
}

type container struct {
	Name, Image   string
	Command, Args []string
	Env           []struct {
		Name, Value string
		ValueFrom   struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
		} `yaml:"valueFrom"`
	}
	StartupProbe   containerProbe `yaml:"startupProbe"`
	ReadinessProbe containerProbe `yaml:"readinessProbe"`
	LivenessProbe  containerProbe `yaml:"livenessProbe"`
	VolumeMounts   []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type containerProbe struct {
	HTTPGet struct{ Path string } `yaml:"httpGet"`
}

// podID is the user and the group that the manifests run everything as.
const podID = 65532

// readManifests reads packaging/k8s-NAME.yaml.
func readManifests(t *testing.T, name string) (all []manifest) {
	t.Helper()
	path := filepath.Join("..", "..", "packaging", "k8s-"+name+".yaml")
	if name == "lease-server" || name == "secrets" {
		path = filepath.Join("..", "..", "packaging", "lease-server", "k8s-"+name+".yaml")
	}
	text, err := os.ReadFile(path)
	must.Succeed(t, err)
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m manifest
		err := documents.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		must.Succeed(t, err)
		all = append(all, m)
	}
}

// ofKind is the manifest of a kind and a name; of the first one if that is "".
func ofKind(t *testing.T, all []manifest, kind, name string) manifest {
	t.Helper()
	i := slices.IndexFunc(all, func(m manifest) bool { return m.Kind == kind && (name == "" || m.Metadata.Name == name) })
	if i < 0 {
		t.Fatalf("there is no %s %s", kind, name)
	}
	return all[i]
}

// pod is a pod of a manifest on this host: its mounts are directories of the site.
type pod struct {
	*site
	mounts map[string]string // directory here by the path in the container
	fields map[string]string // downward API
}

func (s *site) pod(name string) *pod {
	return &pod{site: s, mounts: map[string]string{}, fields: map[string]string{
		"metadata.name": name, "metadata.namespace": "shop", "spec.nodeName": "node-7",
	}}
}

// mount puts a directory where the containers expect it.
func (p *pod) mount(path, dir string) { p.mounts[path] = dir }

// here replaces the paths of the container in a text, /run/kazahana-live before
// /run/kazahana.
func (p *pod) here(text string) string {
	for _, path := range slices.Backward(slices.Sorted(maps.Keys(p.mounts))) {
		text = strings.ReplaceAll(text, path, p.mounts[path])
	}
	return text
}

// environ is what Kubernetes gives the container.
func (p *pod) environ(c container, more ...string) []string {
	p.T.Helper()
	env := p.Environment("KUBERNETES_SERVICE_HOST=10.96.0.1")
	before := map[string]string{} // a variable sees only those before it in the list
	for _, e := range c.Env {
		value := e.Value
		if field := e.ValueFrom.FieldRef.FieldPath; field != "" {
			value = p.fields[field]
		}
		for name, text := range before {
			value = strings.ReplaceAll(value, "$("+name+")", text)
		}
		if value == "" || strings.Contains(value, "$(") {
			p.T.Errorf("%s is %q", e.Name, value)
		}
		before[e.Name] = value
		env = append(env, e.Name+"="+p.here(value))
	}
	return append(env, more...)
}

// run is a command in the container: with its environment and as its user.
func (p *pod) run(c container, args []string, more ...string) *exec.Cmd {
	cmd := p.Command(args...)
	// Of a repeated variable the last one counts to the command that is started.
	cmd.Env = p.environ(c, more...)
	cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, &syscall.Credential{Uid: podID, Gid: podID, Groups: []uint32{podID}})
	return cmd
}

// probe is whether a probe of the daemon's container succeeds now.
func (p *pod) probe(probe containerProbe) bool {
	code, _, err := testkit.GetUnix(p.Path("admin.sock"), probe.HTTPGet.Path)
	return err == nil && code == http.StatusOK
}

// emptyDir is a volume in memory as the kubelet makes it for a pod with an fsGroup.
func (p *pod) emptyDir() string {
	p.T.Helper()
	dir := p.inMemory()
	must.Succeed(p.T, errors.Join(os.Chown(dir, 0, podID), os.Chmod(dir, 0o777|os.ModeSetgid)))
	return dir
}

// inMemory is a new directory of root's on a file system in memory.
func (p *pod) inMemory() string {
	p.T.Helper()
	const memory = "/dev/shm"
	if !folder.InMemory(memory) {
		p.T.Skipf("%s is not in memory here, as volumes of the manifests have to be", memory)
	}
	dir, err := os.MkdirTemp(memory, "kz-pod-")
	must.Succeed(p.T, err)
	p.T.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// secretDir is the volume of a Secret: files of root's that the fsGroup reads.
func (s *site) secretDir(name string, files map[string]string) string {
	s.T.Helper()
	dir := s.Path(name)
	testkit.Mkdir(s.T, dir)
	must.Succeed(s.T, os.Chmod(dir, 0o755))
	for file, text := range files {
		path := filepath.Join(dir, file)
		testkit.WriteFile(s.T, path, text)
		must.Succeed(s.T, errors.Join(os.Chown(path, 0, podID), os.Chmod(path, 0o440)))
	}
	return dir
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user, and give files away")
	}
}

// loopbackCertificate is one for 127.0.0.1 that signs itself, and its key.
func loopbackCertificate(t *testing.T) (certificate, key string) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	server.Close()
	own := server.TLS.Certificates[0]
	secret, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	must.Succeed(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

// cluster is what the manifests of the lease server and of the Secrets make:
// the volumes of the server and of its clients.
type cluster struct{ server, client string }

// cluster fills in the templates of k8s-secrets.yaml, and mounts them as
// k8s-lease-server.yaml says. provider takes the place of its Redis.
func (s *site) cluster(provider string) cluster {
	s.T.Helper()
	const token = "0123456789abcdef0123456789abcdef"
	sum := sha256.Sum256([]byte(token))
	certificate, key := loopbackCertificate(s.T)
	fill := strings.NewReplacer("REPLACE_WITH_SHA256_OF_THE_TOKEN", hex.EncodeToString(sum[:]), "REPLACE_WITH_PASSWORD_OF_REDIS", "secret",
		"REPLACE_WITH_CERTIFICATE_IN_PEM_FORM", certificate, "REPLACE_WITH_PRIVATE_KEY_IN_PEM_FORM", key,
		"REPLACE_WITH_THE_TOKEN", token, "REPLACE_WITH_THE_AUTHORITY_IN_PEM_FORM", certificate)
	server, client := map[string]string{}, map[string]string{}
	secrets := readManifests(s.T, "secrets")
	for _, name := range []string{"kazahana-lease-server", "kazahana-lease-server-tls", "kazahana-client"} {
		into := server
		if name == "kazahana-client" {
			into = client
		}
		for file, text := range ofKind(s.T, secrets, "Secret", name).StringData {
			into[file] = fill.Replace(text)
		}
	}
	for file, text := range ofKind(s.T, readManifests(s.T, "lease-server"), "ConfigMap", "").Data {
		text = strings.ReplaceAll(text, "/etc/kazahana/", s.Path("server")+"/")
		if provider != "" {
			text = strings.ReplaceAll(text, `listen: ":7464"`, "listen: 127.0.0.1:0")
			text = regexp.MustCompile(`(?m)^provider: .*$`).ReplaceAllString(text, "provider: "+provider)
			text = strings.ReplaceAll(text, "drain_delay: 5s", "drain_delay: 0s")
		}
		server[file] = text
	}
	return cluster{s.secretDir("server", server), s.secretDir("client", client)}
}

// The command line, the environment and the configuration of each container are
// what this binary takes: every flag, key, value and probe.
func TestKubernetesManifestsAreAccepted(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	made := s.cluster("")
	server := ofKind(t, readManifests(t, "lease-server"), "Deployment", "").Spec.Template.Spec.Containers[0]
	p := s.pod("kazahana-lease-server-0")
	if file := server.VolumeMounts[0].MountPath + "/lease-server.yaml"; file != config.DefaultLeaseServerFile {
		t.Errorf("the configuration is mounted as %s, and read from %s", file, config.DefaultLeaseServerFile)
	}
	file := "KAZAHANA_CONFIG=" + made.server + "/lease-server.yaml"
	check := func(more ...string) testkit.Outcome {
		return testkit.RunCommand(t, p.run(server, append(server.Args, "--check"), append(more, file)...))
	}
	if said := check().OK(t); !strings.Contains(said, "ok: listen :7464, provider redis://redis.kazahana.svc:6379") {
		t.Error(said)
	}
	testkit.WriteFile(t, made.server+"/tokens.yaml", ofKind(t, readManifests(t, "secrets"), "Secret", "kazahana-lease-server").StringData["tokens.yaml"])
	check().Fails(t, exitFailure, "tokens_file", "entry 1") // a template is not taken for a token

	for name, kind := range map[string]string{"sidecar": "Deployment", "daemonset": "DaemonSet"} {
		spec := ofKind(t, readManifests(t, name), kind, "").Spec.Template.Spec
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			if !strings.HasPrefix(c.Image, "kazahana") {
				continue
			}
			p := s.pod(name + "-0")
			for _, m := range c.VolumeMounts {
				p.mount(m.MountPath, s.Path(name+"-"+m.Name))
			}
			if said := testkit.RunCommand(t, p.run(c, append(c.Args, "--check"))).OK(t); !strings.Contains(said, "provider kubernetes:") {
				t.Error(said)
			}
			// Why the manifest names one.
			testkit.RunCommand(t, p.run(c, append(c.Args, "--check"), "KAZAHANA_PROVIDER=")).Fails(t, exitUsage, "provider is not set", "inside Kubernetes")
		}
	}
}

// The sidecar as its manifest says, without Kubernetes: as its user, in volumes
// like a pod's, on an API server that gives it the rights of the manifest's Role. It is
// killed and started again, then moved to a new pod. No ID comes twice, none is a fallback
// ID, and those of a pod ascend.
func TestKubernetesSidecar(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	api := kubetest.NewServer(t, nil)
	api.Allow("orders", kubetest.Verbs(t)...)
	account := s.secretDir("account", map[string]string{"kubeconfig": api.KubeconfigText("orders")})
	for _, machine := range s.sidecars("kubernetes:?kubeconfig=" + account + "/kubeconfig") {
		l := api.Snapshot().Objects[fmt.Sprintf("kazahana-default-%d", machine)]
		if l.Spec.HolderIdentity == nil || !strings.HasPrefix(*l.Spec.HolderIdentity, "shop/orders-") {
			t.Errorf("machine ID %d is held by %+v", machine, l.Spec)
		}
	}
}

// The same with the lease server of the other manifest, and the Secrets of the templates.
func TestKubernetesSidecarOfALeaseServer(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	made := s.cluster("sqlite:" + s.Leases())
	must.Succeed(t, os.Chown(s.Dir, podID, podID)) // of the store's file
	server := ofKind(t, readManifests(t, "lease-server"), "Deployment", "").Spec.Template.Spec.Containers[0]
	l := &testkit.LeaseServer{Instance: s.LaunchCommand(s.pod("lease-server-0").run(server, server.Args,
		"KAZAHANA_CONFIG="+made.server+"/lease-server.yaml"))}
	l.AwaitAddress()
	s.sidecars("https://" + l.Address + "?token_file=" + made.client + "/token&ca_file=" + made.client + "/ca.crt")
	l.Terminate()
}

// sidecars runs the sidecar's daemon in two pods, on this provider, and returns their
// machine IDs.
func (s *site) sidecars(provider string) (machines []int64) {
	s.T.Helper()
	must.Succeed(s.T, os.Chown(s.Dir, podID, podID)) // of the admin socket
	c := ofKind(s.T, readManifests(s.T, "sidecar"), "Deployment", "").Spec.Template.Spec.InitContainers[0]
	var all []uint64
	for _, name := range []string{"orders-1", "orders-2"} {
		p := s.pod(name)
		for _, m := range c.VolumeMounts {
			if m.Name != "kazahana-token" {
				p.mount(m.MountPath, p.emptyDir())
			}
		}
		p.mount("kubernetes:", provider)
		ids, machine := p.lives(c)
		if !testkit.Ascending(ids) {
			s.T.Errorf("the IDs of pod %s do not ascend", name)
		}
		all, machines = append(all, ids...), append(machines, machine)
	}
	if n, first := testkit.Duplicates(all); n > 0 {
		s.T.Errorf("%d IDs came twice; the first is %d", n, first)
	}
	if machines[0] == machines[1] { // the first was killed, and keeps it
		s.T.Errorf("both pods had machine ID %d", machines[0])
	}
	return machines
}

// In a pod a daemon finds the API server, its namespace and its token by itself.
func TestKubernetesInAPod(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		t.Skipf("no mount namespace can be made here: %v", err)
	}
	s := newSite(t)
	api := kubetest.NewServer(t, nil)
	api.Allow("orders", kubetest.Verbs(t)...)
	account := s.secretDir("account", map[string]string{"token": "orders", "namespace": kubetest.Namespace, "ca.crt": string(api.Authority())})
	host, port, err := net.SplitHostPort(api.Address())
	must.Succeed(t, err)
	cmd := exec.Command("unshare", "--mount", "sh", "-ec",
		`mount -t tmpfs tmpfs /run; mkdir -p /var/run/secrets/kubernetes.io; ln -s "$1" /var/run/secrets/kubernetes.io/serviceaccount; shift; exec "$@"`,
		"sh", account, testkit.Executable(), "run", "-q", "--provider", "kubernetes:", "--meta", "pod=orders-7", "--", "sh", "-c", "echo number {}")
	cmd.Env = s.Environment("KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	said := testkit.RunCommand(t, cmd).OK(t)
	number := strings.TrimSpace(strings.TrimPrefix(said, "number "))
	if _, there := api.Snapshot().Objects["kazahana-default-"+number]; !there {
		t.Errorf("the program has said %q, and the API server has %v", said, slices.Collect(maps.Keys(api.Snapshot().Objects)))
	}
}

// lives runs the daemon twice in the same pod, with a kill in between, and
// returns the IDs that the application got.
func (p *pod) lives(c container) (ids []uint64, machine int64) {
	p.T.Helper()
	p.Socket = p.here("/run/kazahana/kazahanad.sock")
	for life := range 2 {
		// That the answer must not be a fallback ID is the test's wish.
		d := p.LaunchCommand(p.run(c, c.Args, "KAZAHANA_ADMIN_LISTEN=unix:"+p.Path("admin.sock"), "KAZAHANA_STARTUP_WAIT=30s"))
		await.Eventually(p.T, "the startup probe succeeds", func() bool { return p.probe(c.StartupProbe) })
		if !p.probe(c.ReadinessProbe) || !p.probe(c.LivenessProbe) {
			p.T.Error("the daemon is started, and not ready or not alive")
		}
		ids = append(ids, p.Dial().IDs(5000, map[string]any{"regular_only": true})...)
		p.seenByApplication()
		lease := p.Dial().Lease()
		if life == 1 && lease.MachineID != machine {
			p.T.Errorf("after the restart the machine ID is %d, before it was %d: the state did not survive", lease.MachineID, machine)
		}
		machine = lease.MachineID
		p.heldByPod(c, machine)
		d.Kill()
		if p.probe(c.LivenessProbe) {
			p.T.Error("the liveness probe succeeds without a daemon")
		}
	}
	for variable, dir := range map[string]string{"KAZAHANA_STATE_DIR": "/var/lib/kazahana/state", "KAZAHANA_LIVE_DIR": "/run/kazahana-live/live"} {
		info, err := os.Stat(p.here(dir))
		if err != nil || info.Mode().Perm() != 0o700 {
			p.T.Errorf("%s: %v, %v", dir, info, err)
		}
		// Why it is not the volume itself.
		testkit.RunCommand(p.T, p.run(c, c.Args, variable+"="+p.here(filepath.Dir(dir)))).Fails(p.T, exitState, "every user may write")
	}
	return ids, machine
}

// seenByApplication has another user of the pod ask for an ID, through a mount that is read-only;
// and a user who is not in the volumes' group.
func (p *pod) seenByApplication() {
	p.T.Helper()
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		p.T.Logf("no mount namespace can be made here, so the read-only mount is not tried: %v", err)
		return
	}
	ask := func(groups string) testkit.Outcome {
		cmd := exec.Command("unshare", "--mount", "sh", "-ec",
			`mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; exec setpriv --reuid 1234 --regid 1234 `+groups+` "$0" id --socket "$2"`,
			testkit.Executable(), filepath.Dir(p.Socket), p.Socket)
		cmd.Env = p.Environment()
		return testkit.RunCommand(p.T, cmd)
	}
	ask("--groups 65532").OK(p.T)
	ask("--clear-groups").Fails(p.T, exitFailure, "permission denied")
}

// heldByPod asks, in the container, for the holder of the machine ID.
func (p *pod) heldByPod(c container, machine int64) {
	p.T.Helper()
	var report leasesReport
	// A lease server leaves out what only an administrator may see, with a note on stderr.
	testkit.DecodeJSON(p.T, testkit.RunCommand(p.T, p.run(c, []string{"leases", "--json"})).Stdout, &report)
	for _, l := range report.Leases {
		if l.MachineID == machine {
			for name, field := range map[string]string{"pod": "metadata.name", "namespace": "metadata.namespace", "node": "spec.nodeName"} {
				if l.Meta[name] != p.fields[field] {
					p.T.Errorf("the lease's meta is %v", l.Meta)
				}
			}
			return
		}
	}
	p.T.Errorf("nothing is said of machine ID %d", machine)
}

// The DaemonSet's init container gives the node's directories to the daemon,
// which needs nothing of root's then; and does so again at each start.
func TestKubernetesDaemonSet(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	spec := ofKind(t, readManifests(t, "daemonset"), "DaemonSet", "").Spec.Template.Spec
	first, c := spec.InitContainers[0], spec.Containers[0]
	p := s.pod("kazahanad-x")
	for _, m := range c.VolumeMounts {
		dir := p.inMemory() // as the kubelet makes it: root's, 0755
		must.Succeed(t, os.Chmod(dir, 0o755))
		p.mount(m.MountPath, dir)
	}
	s.Socket = p.here("/run/kazahana/kazahanad.sock")
	args := []string{"serve", "--provider", "sqlite:" + p.here("/var/lib/kazahana") + "/leases.db", "--admin-listen", "none"}
	testkit.RunCommand(t, p.run(c, args)).Fails(t, exitState, "belongs to the user with UID 0")
	for range 2 {
		script := []string{}
		for _, a := range first.Args {
			script = append(script, p.here(a))
		}
		if out, err := exec.Command(first.Command[0], append(first.Command[1:], script...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		d := s.LaunchCommand(p.run(c, args))
		d.AwaitReady()
		for path, mode := range map[string]os.FileMode{"/run/kazahana": 0o755, "/var/lib/kazahana": 0o700, "/run/kazahana-live": 0o700} {
			info, err := os.Stat(p.here(path))
			if err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v, %v", path, info, err)
			}
		}
		if id := s.Dial().ID(); id <= snowflake.ID(0) {
			t.Errorf("ID %d", id)
		}
		d.Terminate()
	}
}

// The commands of docs/kubernetes.md make the Secrets that the manifests name,
// with keys and tokens that the lease server takes and a certificate for its name.
func TestKubernetesDocsMakeTheSecrets(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ring.Program(t, "openssl")
	// Instead of a cluster: Secrets become directories.
	testkit.WriteFile(t, s.Path("kubectl"), `#!/bin/sh
case " $* " in *" create secret "*) ;; *) exit 0 ;; esac
while [ "$1" != secret ]; do shift; done
mkdir -p "$SECRETS/$3"
for a; do case $a in
--from-file=*) cp "${a#*=}" "$SECRETS/$3/" ;;
--cert=*) cp "${a#*=}" "$SECRETS/$3/tls.crt" ;;
--key=*) cp "${a#*=}" "$SECRETS/$3/tls.key" ;;
esac; done
`)
	must.Succeed(t, os.Chmod(s.Path("kubectl"), 0o755))
	var script strings.Builder
	for _, m := range docFence.FindAllStringSubmatch(docPages(t)["docs/kubernetes.md"], -1) {
		if m[2] == "sh" && !strings.Contains(m[3], "docker ") {
			script.WriteString(m[3])
		}
	}
	cmd := exec.Command("bash", "-euc", script.String())
	cmd.Dir, cmd.Env = s.Dir, s.Environment("SECRETS="+s.Path("secrets"), "REDIS_PASSWORD=secret")
	cmd.Env = append(cmd.Env, "PATH="+s.Dir+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read := func(path string) string {
		text, err := os.ReadFile(s.Path("secrets/" + path))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	for _, secret := range readManifests(t, "secrets") {
		for key := range secret.StringData {
			if read(secret.Metadata.Name+"/"+key) == "" {
				t.Errorf("the commands make no %s of Secret %s", key, secret.Metadata.Name)
			}
		}
	}
	sum := sha256.Sum256([]byte(read("kazahana-client/token")))
	if tokens := read("kazahana-lease-server/tokens.yaml"); !strings.Contains(tokens, hex.EncodeToString(sum[:])) {
		t.Errorf("the token's digest is not in %s", tokens)
	}
	s.Kazahanad("lease-server", "--check", "--config", "none", "--listen", ":7464",
		"--tokens-file", s.Path("secrets/kazahana-lease-server/tokens.yaml"),
		"--tls-cert", s.Path("secrets/kazahana-lease-server-tls/tls.crt"), "--tls-key", s.Path("secrets/kazahana-lease-server-tls/tls.key")).OK(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(read("kazahana-client/ca.crt")))
	block, _ := pem.Decode([]byte(read("kazahana-lease-server-tls/tls.crt")))
	certificate, err := x509.ParseCertificate(block.Bytes)
	must.Succeed(t, err)
	if _, err := certificate.Verify(x509.VerifyOptions{DNSName: "kazahana-lease-server.kazahana.svc", Roots: roots}); err != nil {
		t.Error(err)
	}
}
