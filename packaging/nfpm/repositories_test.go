package nfpm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// fromDocs is the first block of code of a kind in a section of docs/packages.md.
func fromDocs(t *testing.T, section, kind string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "packages.md"))
	must.Succeed(t, err)
	_, rest, found := strings.Cut(string(page), "\n## "+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	_, block, has := strings.Cut(rest, "\n```"+kind+"\n")
	block, _, closed := strings.Cut(block, "```")
	if !found || !has || !closed {
		t.Fatalf("docs/packages.md has no %s in %q", kind, section)
	}
	return block
}

// sshKey makes a key that exists while the test does.
func sshKey(t *testing.T) string {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	output(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	return key
}

// release is a directory of files as scripts/release-files leaves it.
func release(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"a.deb": "package", "kazahana 1.provenance.json": "{}"} {
		write(t, filepath.Join(dir, name), text)
	}
	sumAll(t, dir)
	return dir
}

func sumAll(t *testing.T, dir string) {
	t.Helper()
	output(t, "sh", "-c", `cd "$0" && sha256sum -- *.deb *.json > SHA256SUMS`, dir)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
}

func sign(dir, key string) ([]byte, error) {
	return exec.Command(filepath.Join(root, "scripts", "release-sign"), dir, key).CombinedOutput()
}

// The commands of docs/packages.md accept a release as it was signed, and none that was touched
// since.
func TestVerifyARelease(t *testing.T) {
	ring.Deep(t)
	verify := fromDocs(t, "Verify", "sh")
	accepted := func(dir string) ([]byte, bool) {
		cmd := exec.Command("bash", "-ec", verify)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return out, err == nil
	}
	key, other := sshKey(t), sshKey(t)
	for name, change := range map[string]func(dir string){
		"":                                func(string) {},
		"a file changed":                  func(dir string) { write(t, filepath.Join(dir, "a.deb"), "Package") },
		"a file and its checksum changed": func(dir string) { write(t, filepath.Join(dir, "a.deb"), "Package"); sumAll(t, dir) },
		"the provenance changed":          func(dir string) { write(t, filepath.Join(dir, "kazahana 1.provenance.json"), "[]") },
		"signed by another key": func(dir string) {
			output(t, "sh", "-c", `cd "$0" && rm SHA256SUMS.sig && ssh-keygen -q -Y sign -f "$1" -n kazahana-release SHA256SUMS`, dir, other)
		},
		"signed by the key for other uses": func(dir string) {
			output(t, "sh", "-c", `cd "$0" && rm SHA256SUMS.sig && ssh-keygen -q -Y sign -f "$1" -n git SHA256SUMS`, dir, key)
		},
		"a signature of another list": func(dir string) { write(t, filepath.Join(dir, "SHA256SUMS.sig"), "") },
	} {
		dir := release(t)
		if out, err := sign(dir, key); err != nil {
			t.Fatalf("release-sign: %v\n%s", err, out)
		}
		change(dir)
		if out, ok := accepted(dir); ok != (name == "") {
			t.Errorf("%s: accepted: %v\n%s", name, ok, out)
		}
	}
}

// A file that is not on the list, or differs from it, is not signed.
func TestSignRefuses(t *testing.T) {
	ring.Deep(t)
	key := sshKey(t)
	for file, text := range map[string]string{"a.deb": "Package", "late.rpm": "forgotten"} {
		dir := release(t)
		write(t, filepath.Join(dir, file), text)
		if out, err := sign(dir, key); err == nil || !bytes.Contains(out, []byte(file)) {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}

// repository is what scripts/repositories makes of the built packages.
type repository struct {
	t            *testing.T
	packages     string
	site, key    string
	environment  []string
	otherKeyFile string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{t: t, packages: filepath.Dir(file(t, "*.deb")), site: filepath.Join(t.TempDir(), "site")}
	keys, err := os.MkdirTemp("", "kz-gpg-") // the agent's socket needs a short path
	must.Succeed(t, err)
	r.environment = append(os.Environ(), "GNUPGHOME="+keys)
	t.Cleanup(func() {
		r.command("gpgconf", "--kill", "all")
		_ = os.RemoveAll(keys)
	})
	for _, name := range []string{"kazahana", "somebody"} {
		r.must("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", name+" <"+name+"@kazahana.invalid>", "ed25519", "sign", "never")
	}
	r.otherKeyFile = filepath.Join(t.TempDir(), "somebody.asc")
	write(t, r.otherKeyFile, r.must("gpg", "--batch", "--armor", "--export", "somebody"))
	for line := range strings.Lines(r.must("gpg", "--batch", "--with-colons", "--list-keys", "kazahana")) {
		if fields := strings.Split(line, ":"); fields[0] == "fpr" && r.key == "" {
			r.key = fields[9]
		}
	}
	r.environment = append(r.environment, "GPG_KEY="+r.key)
	return r
}

func (r *repository) command(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = r.environment
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (r *repository) must(name string, args ...string) string {
	r.t.Helper()
	ring.Program(r.t, name)
	out, err := r.command(name, args...)
	if err != nil {
		r.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

func (r *repository) publish() (string, error) {
	return r.command(filepath.Join(root, "scripts", "repositories"), r.packages, r.site)
}

// apt runs apt-get with nothing of this host but the installed packages: with the sources of
// docs/packages.md, and a key.
func (r *repository) apt(key string, args ...string) (string, error) {
	r.t.Helper()
	dir := r.t.TempDir()
	for _, d := range []string{"etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/apt/apt.conf.d", "etc/apt/trusted.gpg.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "got"} {
		must.Succeed(r.t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	sources := strings.NewReplacer("https://packages.example", "file:"+r.site, "/etc/apt/keyrings/kazahana.asc", key).
		Replace(fromDocs(r.t, "An apt and a yum repository", "deb822"))
	write(r.t, filepath.Join(dir, "etc/apt/sources.list.d/kazahana.sources"), sources)
	isolated := []string{"-o", "Dir=" + dir, "-o", "Dir::State::status=/var/lib/dpkg/status", "-o", "APT::Sandbox::User=root", "-o", "APT::Update::Error-Mode=any"}
	out, err := r.command("apt-get", append(isolated, "update")...)
	if err != nil || args == nil {
		return out, err
	}
	more, err := r.command("env", append(append([]string{"-C", filepath.Join(dir, "got"), "apt-get"}, isolated...), args...)...)
	return out + more, err
}

// dnf asks for the package with the configuration of docs/packages.md, and a key.
func (r *repository) dnf(key string) (string, error) {
	r.t.Helper()
	dir := r.t.TempDir()
	repo := strings.NewReplacer("https://packages.example/kazahana.asc", "file://"+key, "https://packages.example", "file://"+r.site).
		Replace(fromDocs(r.t, "An apt and a yum repository", "ini"))
	write(r.t, filepath.Join(dir, "kazahana.repo"), repo)
	return r.command("dnf", "-y", "--installroot="+dir, "--setopt=reposdir="+dir, "--setopt=cachedir="+dir+"/cache", "--setopt=logdir="+dir,
		"--releasever=1", "repoquery", "--queryformat", "found %{name} %{version}", "kazahana")
}

// A repository that is made of the packages serves them to apt and dnf as the
// documentation sets them up, and only with the right key and the right bytes.
func TestRepositories(t *testing.T) {
	ring.Deep(t)
	r := newRepository(t)
	for range 2 { // a present one is no mistake
		if out, err := r.publish(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	key := filepath.Join(r.site, "kazahana.asc")
	version := "9.8.7~rc.1-1"
	if out, err := r.apt(key, "install", "--simulate", "kazahana"); err != nil || !strings.Contains(out, "Inst kazahana ("+version) {
		t.Errorf("apt-get install: %v\n%s", err, out)
	}
	if out, err := r.apt(r.otherKeyFile); err == nil || !strings.Contains(out, "NO_PUBKEY") {
		t.Errorf("apt takes lists that another key signed: %v\n%s", err, out)
	}
	ring.Program(t, "dnf")
	if out, err := r.dnf(key); err != nil || !strings.Contains(out, "found kazahana 9.8.7~rc.1") {
		t.Errorf("dnf: %v\n%s", err, out)
	}
	if out, err := r.dnf(r.otherKeyFile); err == nil && strings.Contains(out, "found kazahana") {
		t.Errorf("dnf takes lists that another key signed:\n%s", out)
	}
	r.packagesAreSigned(key)

	deb := filepath.Join(r.site, "apt/pool/main/k/kazahana", "kazahana_"+version+"_"+runtime.GOARCH+".deb")
	if out, err := r.apt(key, "download", "kazahana"); err != nil {
		t.Errorf("apt-get download: %v\n%s", err, out)
	}
	damage(t, deb)
	if out, err := r.apt(key, "download", "kazahana"); err == nil {
		t.Errorf("apt takes a package with other bytes:\n%s", out)
	}
	if out, err := r.publish(); err == nil || !strings.Contains(out, "is there with another content") {
		t.Errorf("a published version is replaced: %v\n%s", err, out)
	}
	damage(t, filepath.Join(r.site, "apt/dists/stable/main/binary-"+runtime.GOARCH+"/Packages.gz"))
	damage(t, filepath.Join(r.site, "apt/dists/stable/main/binary-"+runtime.GOARCH+"/Packages"))
	if out, err := r.apt(key); err == nil {
		t.Errorf("apt takes a list with other bytes:\n%s", out)
	}
}

// A passphrase that is not given leaves the repository as it was.
func TestRepositoriesStayWithoutASignature(t *testing.T) {
	ring.Deep(t)
	r := newRepository(t)
	if out, err := r.publish(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	tools, environment := t.TempDir(), r.environment
	program := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *--detach-sign*) exit 2;; esac\nexec %s \"$@\"\n", ring.Program(t, "gpg"))
	must.Succeed(t, os.WriteFile(filepath.Join(tools, "gpg"), []byte(program), 0o755))
	r.environment = append(slices.Clone(environment), "PATH="+tools+":"+os.Getenv("PATH"))
	if out, err := r.publish(); err == nil {
		t.Fatalf("it is published without a signature:\n%s", out)
	}
	r.environment = environment
	if out, err := r.apt(filepath.Join(r.site, "kazahana.asc")); err != nil {
		t.Errorf("apt no longer takes the repository: %v\n%s", err, out)
	}
	if left, err := filepath.Glob(filepath.Join(r.site, ".work*")); err != nil || left != nil {
		t.Errorf("%q is left (%v)", left, err)
	}
}

// A directory that holds no release is not emptied.
func TestReleaseEmptiesReleasesOnly(t *testing.T) {
	ring.Deep(t)
	script := filepath.Join(root, "scripts", "release-empty")
	other := t.TempDir()
	write(t, filepath.Join(other, "letter"), "dear")
	if out, err := exec.Command(script, other).CombinedOutput(); err == nil || !strings.Contains(string(out), "no release") {
		t.Errorf("%v\n%s", err, out)
	}
	for dir, want := range map[string]int{other: 1, release(t): 0} {
		for _, args := range [][]string{{dir, "check"}, {dir}} {
			_ = exec.Command(script, args...).Run() // the files tell
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != want {
			t.Errorf("%d files are left, want %d (%v)", len(left), want, err)
		}
	}
}

// packagesAreSigned: rpm, which knows no key but this one, accepts each package, and finds no
// signature in the release's.
func (r *repository) packagesAreSigned(key string) {
	r.t.Helper()
	database := "--dbpath=" + r.t.TempDir()
	r.must("rpm", database, "--import", key)
	signed, err := filepath.Glob(filepath.Join(r.site, "yum/*/*.rpm"))
	if err != nil || len(signed) != 1 {
		r.t.Fatalf("packages for yum: %q (%v)", signed, err)
	}
	for path, want := range map[string]bool{signed[0]: true, file(r.t, "*.rpm"): false} {
		out := r.must("rpm", database, "-Kv", path)
		if got := strings.Contains(out, "Signature, key ID") && !strings.Contains(out, "NOKEY"); got != want {
			r.t.Errorf("%s: signed: %v\n%s", path, got, out)
		}
	}
}

// damage changes one byte in the middle.
func damage(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	must.Succeed(t, err)
	content[len(content)/2] ^= 1
	write(t, path, string(content))
}

// Without a key there is a message that says which.
func TestRepositoriesNeedAKey(t *testing.T) {
	ring.Deep(t)
	cmd := exec.Command(filepath.Join(root, "scripts", "repositories"), t.TempDir(), t.TempDir())
	for _, key := range []string{"", "nobody@kazahana.invalid"} {
		cmd := &exec.Cmd{Path: cmd.Path, Args: cmd.Args, Env: append(os.Environ(), "GPG_KEY="+key)}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), fmt.Sprintf("'%s'", key)) && !strings.Contains(string(out), "GPG_KEY is not set") {
			t.Errorf("%q: %v\n%s", key, err, out)
		}
	}
}
