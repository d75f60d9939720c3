//go:build go1.25

package kazahana

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestParseSocket reads the table that all clients share.
func TestParseSocket(t *testing.T) {
	text, err := os.ReadFile("../../testdata/socket_addresses.json")
	if err != nil {
		t.Fatal(err)
	}
	var table []struct{ Text, Path, Refused string }
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	for _, c := range table {
		switch path, err := parseSocket(c.Text); {
		case c.Refused != "":
			wantError(t, err, c.Refused)
		case err != nil || path != c.Path:
			t.Errorf("%q: %q, %v, want %q", c.Text, path, err, c.Path)
		}
	}
}

// listen makes a socket, and its directory.
func listen(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return path
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %v, want %q in it", err, part)
		}
	}
}

func TestFindSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "k") // short, since a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	missing, file := filepath.Join(dir, "no"), filepath.Join(dir, "file")
	first, second := listen(t, filepath.Join(dir, "1")), listen(t, filepath.Join(dir, "2"))
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, paths := range [][]string{{missing, first, second}, {first, second}, {first, file}, {file + "/below", first}} {
		if got, err := firstSocket(anywhere(paths...)); err != nil || got != first {
			t.Errorf("%v: %s, %v", paths, got, err)
		}
	}
	_, err = firstSocket(anywhere(missing, missing+"2"))
	wantError(t, err, missing+" (no such file or directory)", missing+"2", "start one")
	var away *DaemonUnavailableError
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &away) || away.hopeless {
		t.Errorf("%v: a daemon may still come", err)
	}
	_, err = firstSocket(anywhere(file, first))
	wantError(t, err, file+" exists and is not a socket")

	t.Setenv("KAZAHANA_SOCKET", " unix://"+first+"\n")
	if got, err := findSocket(); err != nil || got != first {
		t.Errorf("%s, %v", got, err)
	}
	t.Setenv("KAZAHANA_SOCKET", missing)
	if got, err := findSocket(); err != nil || got != missing { // no other one is asked
		t.Errorf("%s, %v", got, err)
	}
	t.Setenv("KAZAHANA_SOCKET", "http://u:hunter2@h/x")
	_, err = findSocket()
	wantError(t, err, "KAZAHANA_SOCKET", "is not a Unix socket")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a password is shown: %v", err)
	}
	t.Setenv("KAZAHANA_SOCKET", "")
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("RUNTIME_DIRECTORY", dir) // of the caller's own unit
	if got, err := findSocket(); err == nil && strings.HasPrefix(got, dir) {
		t.Errorf("%s is found", got)
	}
	own := listen(t, filepath.Join(dir, "kazahana", "kazahanad.sock"))
	if got, err := findSocket(); err != nil || got != own {
		t.Errorf("%s, %v", got, err)
	}
}

func anywhere(paths ...string) (places []place) {
	for _, path := range paths {
		places = append(places, place{path: path})
	}
	return places
}

// Another user can have made a directory below /tmp, or of the name that su has kept.
func TestSocketsOfOtherUsersAreIgnored(t *testing.T) {
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path, second := listen(t, filepath.Join(dir, "own", "s")), listen(t, filepath.Join(dir, "second"))
	find := func(path string) error {
		_, err := firstSocket([]place{{path, filepath.Dir(path)}})
		return err
	}
	if err := find(path); err != nil {
		t.Error(err)
	}
	if err := os.Symlink(filepath.Dir(path), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	wantError(t, find(filepath.Join(dir, "link", "s")), "ignored", "must be a directory")
	if err := os.Chmod(filepath.Dir(path), 0o770); err != nil {
		t.Fatal(err)
	}
	wantError(t, find(path), "with mode 0770, and must be a directory that only user")
	if os.Geteuid() != 0 {
		return // only root can give a directory away
	}
	if err := errors.Join(os.Chmod(filepath.Dir(path), 0o700), os.Chown(filepath.Dir(path), 65534, -1)); err != nil {
		t.Fatal(err)
	}
	wantError(t, find(path), path+" (ignored: "+filepath.Dir(path), "belongs to user 65534")
	if got, err := firstSocket([]place{{path, filepath.Dir(path)}, {path: second}}); got != second {
		t.Errorf("%s, %v: the next place counts", got, err)
	}
	t.Setenv("KAZAHANA_SOCKET", "")
	t.Setenv("XDG_RUNTIME_DIR", filepath.Dir(path))
	if _, err := findSocket(); err != nil { // unless a daemon runs on this machine
		wantError(t, err, "ignored: "+filepath.Dir(path))
	}
}

// Who may not connect hears whom to ask: the group of the socket, or of what hides it.
func TestWhoMayConnect(t *testing.T) {
	dir := t.TempDir()
	path := listen(t, filepath.Join(dir, "s"))
	for place, at := range map[string]string{path: path, dir: filepath.Join(dir, "missing")} {
		wantError(t, unreachable(at, syscall.EACCES), at+": permission denied ("+place+" belongs to user ", " and group ", "--socket-group")
	}
	if hint := whoMay(filepath.Join(dir, "deeper", "s")); hint != "" {
		t.Errorf("%q", hint)
	}
	var away *DaemonUnavailableError
	if err := unreachable(path, syscall.EACCES); !errors.As(err, &away) || !away.hopeless || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v: it is worth no wait", err)
	}
}
