package nfpm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// verifying are the commands of docs/packages.md that verify a release.
func verifying(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "packages.md"))
	must.Succeed(t, err)
	_, rest, found := strings.Cut(string(page), "\n## Verify\n\n```sh\n")
	commands, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("docs/packages.md does not say how to verify")
	}
	return commands
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
	for name, text := range map[string]string{"a.deb": "package", "kazahana 1.tgz": "client"} {
		write(t, filepath.Join(dir, name), text)
	}
	sumAll(t, dir)
	return dir
}

func sumAll(t *testing.T, dir string) {
	t.Helper()
	output(t, "sh", "-c", `cd "$0" && sha256sum -- *.deb *.tgz > SHA256SUMS`, dir)
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
	verify := verifying(t)
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
		"the other file changed":          func(dir string) { write(t, filepath.Join(dir, "kazahana 1.tgz"), "Client") },
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
