// Package nfpm has the packages' contents and scripts. Its tests build them and
// look inside; make test-packages installs them, in a Debian that it boots.
package nfpm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const testVersion = "9.8.7-rc.1"

var root = filepath.Join("..", "..")

// builtIn is what built made.
var builtIn string

// built is the directory with the packages of this architecture.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kz-packages-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	cmd := exec.Command("scripts/packages")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "OUT="+dir, "VERSION="+testVersion, "COMMIT=0123456789abcdef", "SOURCE_DATE_EPOCH=1767312000")
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("scripts/packages: %w\n%s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if builtIn != "" {
		_ = os.RemoveAll(builtIn)
	}
	os.Exit(code)
}

// file returns the built one that matches the pattern.
func file(t *testing.T, pattern string) string {
	t.Helper()
	ring.All(t)
	if runtime.GOOS != "linux" {
		t.Skip("packages are built on linux, with GNU tar")
	}
	dir, err := built()
	must.Succeed(t, err)
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q (%v)", pattern, found, err)
	}
	return found[0]
}

func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	ring.Program(t, name)
	var stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, stderr.String())
	}
	return out
}

// entry is a file in an archive.
type entry struct {
	mode    int64
	owner   string
	content []byte
}

func untar(t *testing.T, r io.Reader) map[string]entry {
	t.Helper()
	all := map[string]entry{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		must.Succeed(t, err)
		content, err := io.ReadAll(archive)
		must.Succeed(t, err)
		if h.Typeflag != tar.TypeDir {
			all[strings.TrimPrefix(h.Name, "./")] = entry{h.Mode & 0o7777, fmt.Sprintf("%d:%d", h.Uid, h.Gid), content}
		}
		if h.ModTime.Unix() != 1767312000 {
			t.Errorf("%s is of %v, and not of the commit's time", h.Name, h.ModTime)
		}
	}
}

// contents are the files of both packages; only those of one have its name before.
var contents = map[string]int64{
	"usr/bin/kazahanad":                                         0o755,
	"deb:lib/systemd/system/kazahanad.service":                  0o644,
	"deb:lib/systemd/system/kazahanad.socket":                   0o644,
	"deb:lib/systemd/system/kazahanad-lease-server.service":     0o644,
	"rpm:usr/lib/systemd/system/kazahanad.service":              0o644,
	"rpm:usr/lib/systemd/system/kazahanad.socket":               0o644,
	"rpm:usr/lib/systemd/system/kazahanad-lease-server.service": 0o644,
	"usr/lib/sysusers.d/kazahana.conf":                          0o644,
	"usr/lib/tmpfiles.d/kazahana.conf":                          0o644,
	"etc/kazahana/kazahanad.yaml":                               0o644,
	"etc/kazahana/lease-server.yaml":                            0o644,
	"usr/share/man/man1/kazahanad.1.gz":                         0o644,
	"usr/share/bash-completion/completions/kazahanad":           0o644,
	"deb:usr/share/zsh/vendor-completions/_kazahanad":           0o644,
	"rpm:usr/share/zsh/site-functions/_kazahanad":               0o644,
	"usr/share/fish/vendor_completions.d/kazahanad.fish":        0o644,
	"usr/share/doc/kazahana/changelog.gz":                       0o644,
	"deb:usr/share/doc/kazahana/changelog.Debian.gz":            0o644,
	"deb:usr/share/doc/kazahana/copyright":                      0o644,
	"deb:usr/share/doc/kazahana/licenses.txt.gz":                0o644,
	"deb:usr/share/lintian/overrides/kazahana":                  0o644,
	"rpm:usr/share/licenses/kazahana/LICENSE":                   0o644,
	"rpm:usr/share/licenses/kazahana/licenses.txt.gz":           0o644,
}

func contentsOf(packager string) []string {
	var names []string
	for name := range contents {
		kind, path, specific := strings.Cut(name, ":")
		switch {
		case !specific:
			names = append(names, name)
		case kind == packager:
			names = append(names, path)
		}
	}
	slices.Sort(names)
	return names
}

func modeOf(packager, path string) int64 { return max(contents[path], contents[packager+":"+path]) }

var conffiles = []string{"/etc/kazahana/kazahanad.yaml", "/etc/kazahana/lease-server.yaml"}

func TestDebianPackage(t *testing.T) {
	deb := file(t, "*.deb")
	if want := "kazahana_9.8.7~rc.1-1_" + runtime.GOARCH + ".deb"; filepath.Base(deb) != want {
		t.Errorf("it is called %s, want %s", filepath.Base(deb), want)
	}
	files := untar(t, bytes.NewReader(output(t, "dpkg-deb", "--fsys-tarfile", deb)))
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, contentsOf("deb")) {
		t.Errorf("it has %q\nwant   %q", got, contentsOf("deb"))
	}
	for path, e := range files {
		if e.mode != modeOf("deb", path) || e.owner != "0:0" || len(e.content) == 0 {
			t.Errorf("%s has the mode %o, the owner %s, %d bytes", path, e.mode, e.owner, len(e.content))
		}
	}
	control := untar(t, bytes.NewReader(output(t, "dpkg-deb", "--ctrl-tarfile", deb)))
	if got := strings.Fields(string(control["conffiles"].content)); !slices.Equal(slices.Sorted(slices.Values(got)), conffiles) {
		t.Errorf("conffiles: %q", got)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		e := control[script]
		if e.mode != 0o755 || !bytes.HasPrefix(e.content, []byte("#!/bin/sh\n")) {
			t.Errorf("%s has the mode %o: %.40q", script, e.mode, e.content)
		}
		cmd := exec.Command("sh", "-n")
		cmd.Stdin = bytes.NewReader(e.content)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	// What an administrator has is given up by a purge, and by nothing else.
	before, purge, found := strings.Cut(string(control["postrm"].content), `if [ "$1" = purge ]; then`)
	if !found || strings.Contains(before, "rm -") || !strings.Contains(purge, "/var/lib/kazahana") ||
		strings.Contains(string(control["prerm"].content)+string(control["postinst"].content), "rm -") {
		t.Errorf("what removes the state: %s", control["postrm"].content)
	}
	fields := string(output(t, "dpkg-deb", "--field", deb))
	for _, want := range []string{"Package: kazahana", "Version: 9.8.7~rc.1-1", "Architecture: " + runtime.GOARCH} {
		if !strings.Contains(fields, want+"\n") {
			t.Errorf("the control file lacks %q:\n%s", want, fields)
		}
	}
	for line := range strings.Lines(fields) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("the control file has a line of %d characters: %s", n, line)
		}
	}
	lookInside(t, files)
}

// lookInside checks that the files are what their names say.
func lookInside(t *testing.T, files map[string]entry) {
	t.Helper()
	for _, name := range []string{"kazahanad.yaml", "lease-server.yaml"} {
		if want, err := os.ReadFile(filepath.Join("..", name)); err != nil || !bytes.Equal(files["etc/kazahana/"+name].content, want) {
			t.Errorf("%s is not the sample (%v)", name, err)
		}
	}
	for path, words := range map[string]string{
		"usr/share/man/man1/kazahanad.1.gz":          ".TH \"KAZAHANAD\" 1",
		"usr/share/doc/kazahana/changelog.gz":        "# Changelog",
		"usr/share/doc/kazahana/changelog.Debian.gz": "kazahana (9.8.7~rc.1-1) ",
		"usr/share/doc/kazahana/licenses.txt.gz":     "github.com/spf13/cobra",
	} {
		r, err := gzip.NewReader(bytes.NewReader(files[path].content))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if text, err := io.ReadAll(r); err != nil || !strings.Contains(string(text), words) || r.Name != "" || !r.ModTime.IsZero() {
			t.Errorf("%s lacks %q, or tells a name or a time: %q %v (%v)", path, words, r.Name, r.ModTime, err)
		}
	}
	binary := filepath.Join(t.TempDir(), "kazahanad")
	must.Succeed(t, os.WriteFile(binary, files["usr/bin/kazahanad"].content, 0o755))
	if got := string(output(t, binary, "version")); !strings.HasPrefix(got, "kazahanad v9.8.7-rc.1 (commit 0123456789abcdef, go") {
		t.Errorf("it is %s", got)
	}
}

func TestRPMPackage(t *testing.T) {
	ring.Deep(t)
	rpm := file(t, "*.rpm")
	query := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(string(output(t, "rpm", append([]string{"-qp", rpm}, args...)...)))
	}
	if got := query("--queryformat", "%{NAME} %{VERSION} %{RELEASE} %{LICENSE}"); got != "kazahana 9.8.7~rc.1 1 MIT" {
		t.Errorf("it is %s", got)
	}
	var names []string
	for line := range strings.Lines(query("--queryformat", "[%{FILENAMES} %{FILEMODES:octal} %{FILEUSERNAME} %{FILEGROUPNAME}\n]")) {
		var path, mode, user, group string
		if _, err := fmt.Sscan(line, &path, &mode, &user, &group); err != nil {
			t.Fatal(err)
		}
		path = strings.TrimPrefix(path, "/")
		names = append(names, path)
		if mode != fmt.Sprintf("100%o", modeOf("rpm", path)) || user != "root" || group != "root" {
			t.Errorf("%s has the mode %s, %s:%s", path, mode, user, group)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, contentsOf("rpm")) {
		t.Errorf("it has %q\nwant   %q", names, contentsOf("rpm"))
	}
	if got := strings.Fields(query("--configfiles")); !slices.Equal(got, conffiles) {
		t.Errorf("configuration: %q", got)
	}
	if flags := query("--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]"); strings.Count(flags, ".yaml cn\n") != 2 {
		t.Errorf("the configuration is replaced by upgrades:\n%s", flags)
	}
	scripts := query("--scripts")
	for _, part := range []string{"postinstall scriptlet", "preuninstall scriptlet", "postuninstall scriptlet", "systemd-sysusers kazahana.conf", "systemctl --no-reload preset"} {
		if !strings.Contains(scripts, part) {
			t.Errorf("the scripts lack %q:\n%s", part, scripts)
		}
	}
	if strings.Contains(scripts, "rm -") {
		t.Errorf("the scripts remove something:\n%s", scripts)
	}
}

func TestTarball(t *testing.T) {
	ring.Deep(t)
	f, err := os.Open(file(t, "*.tar.gz"))
	must.Succeed(t, err)
	defer f.Close()
	r, err := gzip.NewReader(f)
	must.Succeed(t, err)
	files := untar(t, r)
	for _, name := range []string{
		"kazahanad", "LICENSE", "licenses.txt", "README.md", "CHANGELOG.md", "kazahanad.yaml", "lease-server.yaml", "man/kazahanad.1",
		"completion/kazahanad.bash", "completion/kazahanad.zsh", "completion/kazahanad.fish",
		"systemd/kazahanad.service", "systemd/kazahanad.socket", "systemd/kazahanad-lease-server.service",
		"systemd/sysusers.d/kazahana.conf", "systemd/tmpfiles.d/kazahana.conf",
	} {
		e, ok := files["kazahanad_9.8.7-rc.1_linux_"+runtime.GOARCH+"/"+name]
		if want := int64(0o644); !ok || e.owner != "0:0" || name == "kazahanad" && e.mode != 0o755 || name != "kazahanad" && e.mode != want {
			t.Errorf("%s: %v, mode %o, owner %s", name, ok, e.mode, e.owner)
		}
	}
}
