package address

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func lookupIn(variables map[string]string) Lookup {
	return func(name string) (string, bool) {
		text, ok := variables[name]
		return text, ok
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error %q has no %q", err, part)
		}
	}
}

// runtimeDir is a runtime directory of the test's user, with another that belongs to the
// user next to that one.
func runtimeDir(t *testing.T) (dir string, uid int) {
	t.Helper()
	dir = ring.Dir(t)
	must.Succeed(t, os.Chmod(dir, 0o700))
	return dir, os.Geteuid()
}

func TestDaemon(t *testing.T) {
	own, me := runtimeDir(t)
	missing := filepath.Join(own, "missing")
	inTmp := fmt.Sprintf("/tmp/kazahana-%d/kazahanad.sock", me+1)
	for _, c := range []struct {
		env   map[string]string
		uid   int
		want  string
		inTmp bool
	}{
		{map[string]string{"XDG_RUNTIME_DIR": own}, me, own + "/kazahana/kazahanad.sock", false},
		{map[string]string{"XDG_RUNTIME_DIR": own}, me + 1, inTmp, true}, // su keeps it
		{map[string]string{"XDG_RUNTIME_DIR": missing}, me + 1, inTmp, true},
		{nil, 0, "/run/kazahana/kazahanad.sock", false},
		{nil, 1000, "/tmp/kazahana-1000/kazahanad.sock", true},
		{map[string]string{"XDG_RUNTIME_DIR": "relative"}, 1000, "/tmp/kazahana-1000/kazahanad.sock", true},
		{map[string]string{"RUNTIME_DIRECTORY": "/run/kazahana", "XDG_RUNTIME_DIR": "/x"}, 33, "/run/kazahana/kazahanad.sock", false},
		{map[string]string{"RUNTIME_DIRECTORY": "/run/a:/run/b"}, 33, "/run/a/kazahanad.sock", false},
		{map[string]string{"RUNTIME_DIRECTORY": "/run/kazahana-live:/run/kazahana"}, 33, "/run/kazahana/kazahanad.sock", false},
		{map[string]string{"RUNTIME_DIRECTORY": "/run/kazahana-live"}, 33, "/tmp/kazahana-33/kazahanad.sock", true},
		{map[string]string{"RUNTIME_DIRECTORY": "", "XDG_RUNTIME_DIR": ""}, 0, "/run/kazahana/kazahanad.sock", false},
		{map[string]string{"KAZAHANA_SOCKET": "/x"}, 0, "/run/kazahana/kazahanad.sock", false}, // a key, and not a directory
	} {
		path, inTmp := Daemon(lookupIn(c.env), c.uid)
		if path != c.want || inTmp != c.inTmp {
			t.Errorf("%v, uid %d: %s, %v", c.env, c.uid, path, inTmp)
		}
	}
}

// TestParse reads the table that all clients share.
func TestParse(t *testing.T) {
	text, err := os.ReadFile("../../testdata/socket_addresses.json")
	must.Succeed(t, err)
	var table []struct{ Text, Path, Refused string }
	must.Succeed(t, json.Unmarshal(text, &table))
	for _, c := range table {
		switch path, err := Parse(c.Text); {
		case c.Refused != "":
			wantError(t, err, c.Refused)
		case err != nil || path != c.Path:
			t.Errorf("%q: %q, %v, want %q", c.Text, path, err, c.Path)
		}
	}
}

func TestCandidates(t *testing.T) {
	own, me := runtimeDir(t)
	system, inTmp := "/run/kazahana/kazahanad.sock", fmt.Sprintf("/tmp/kazahana-%d/kazahanad.sock", me)
	for _, c := range []struct {
		env  map[string]string
		want []string
	}{
		{nil, []string{system, inTmp}},
		{map[string]string{"XDG_RUNTIME_DIR": own, "RUNTIME_DIRECTORY": "/r"}, []string{own + "/kazahana/kazahanad.sock", system, inTmp}},
		{map[string]string{"XDG_RUNTIME_DIR": "relative"}, []string{system, inTmp}},
	} {
		var got []string
		for _, at := range candidates(lookupIn(c.env), me) {
			got = append(got, at.path)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v", c.env, got)
		}
	}
}

// listen makes a socket and its directories.
func listen(t *testing.T, path string) string {
	t.Helper()
	must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o700))
	l, err := net.Listen("unix", path)
	must.Succeed(t, err)
	t.Cleanup(func() { l.Close() })
	return path
}

func TestFind(t *testing.T) {
	dir := ring.Dir(t)
	missing, missing2 := filepath.Join(dir, "no"), filepath.Join(dir, "no2")
	first, second := listen(t, filepath.Join(dir, "1")), listen(t, filepath.Join(dir, "2"))
	file := filepath.Join(dir, "file")
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	uid := os.Geteuid()
	anywhere := func(paths ...string) (all []candidate) {
		for _, path := range paths {
			all = append(all, candidate{path: path})
		}
		return all
	}

	t.Run("the first that exists", func(t *testing.T) {
		for _, paths := range [][]string{{missing, first, second}, {first, second}, {first, file}, {file + "/below", first}} {
			got, err := find(anywhere(paths...), uid, "")
			if err != nil || got != first {
				t.Errorf("%v: %s, %v", paths, got, err)
			}
		}
	})
	t.Run("none exists", func(t *testing.T) {
		_, err := find(anywhere(missing, missing2), uid, "start one")
		wantError(t, err, missing+" (no such file or directory)", missing2, "start one")
		if _, ok := errors.AsType[*NotFoundError](err); !ok || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%T", err)
		}
	})
	t.Run("not a socket", func(t *testing.T) {
		_, err := find(anywhere(file, first), uid, "")
		wantError(t, err, file+" exists and is not a socket")
	})
	t.Run("by the environment", func(t *testing.T) {
		got, err := Find(lookupIn(map[string]string{"KAZAHANA_SOCKET": "unix://" + first}), uid)
		if err != nil || got != first {
			t.Errorf("%s, %v", got, err)
		}
		_, err = Find(lookupIn(map[string]string{"KAZAHANA_SOCKET": missing}), uid)
		wantError(t, err, missing, "KAZAHANA_SOCKET names this one place")
		_, err = Find(lookupIn(map[string]string{"KAZAHANA_SOCKET": "http://u:hunter2@h/x"}), uid)
		wantError(t, err, "KAZAHANA_SOCKET", "is not a Unix socket")
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a password is shown: %v", err)
		}
	})
	t.Run("denied", func(t *testing.T) {
		if uid == 0 {
			t.Skip("root may go everywhere")
		}
		closed := listen(t, filepath.Join(dir, "closed", "s"))
		must.Succeed(t, os.Chmod(filepath.Dir(closed), 0))
		_, err := find(anywhere(closed, missing), uid, "")
		wantError(t, err, closed+" (permission denied)", missing, filepath.Dir(closed)+" belongs to", "chmod o+x")
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%T", err)
		}
	})
}

// Another user can have made a directory below /tmp, or of the name that su has kept.
func TestSocketsOfOtherUsersAreIgnored(t *testing.T) {
	dir := ring.Dir(t)
	path, uid := listen(t, filepath.Join(dir, "own", "s")), os.Geteuid()
	second := listen(t, filepath.Join(dir, "second"))
	trust := func(path string, uid int) error {
		_, err := find([]candidate{{path, filepath.Dir(path)}}, uid, "")
		return err
	}
	if err := trust(path, uid); err != nil {
		t.Error(err)
	}
	wantError(t, trust(path, uid+1), path+" (ignored: "+filepath.Dir(path), fmt.Sprintf("belongs to another user, %d", uid))
	must.Succeed(t, os.Symlink(filepath.Dir(path), filepath.Join(dir, "link")))
	wantError(t, trust(filepath.Join(dir, "link", "s"), uid), "is not a directory")
	if got, err := find([]candidate{{path, filepath.Dir(path)}, {path: second}}, uid+1, ""); got != second {
		t.Errorf("%s, %v: the next place counts", got, err)
	}
	must.Succeed(t, os.Chmod(filepath.Dir(path), 0o770))
	wantError(t, trust(path, uid), "can be written by others")
}

func TestDenialHint(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	if os.Geteuid() == 0 {
		must.Succeed(t, os.Chown(dir, -1, 65534))
	}
	for mode, want := range map[os.FileMode]string{
		0o770: dir + " belongs to group ",
		0o700: "chmod o+x", // joining its group would not help
	} {
		must.Succeed(t, os.Chmod(dir, mode))
		if hint := DenialHint(path); !strings.Contains(hint, want) {
			t.Errorf("mode %o: %q, want %q in it", mode, hint, want)
		}
	}
	if hint := DenialHint("/etc/passwd"); !strings.Contains(hint, "--socket-group") || strings.Contains(hint, "usermod") {
		t.Errorf("root's group: %q", hint)
	}
	if hint := DenialHint(filepath.Join(path, "deeper", "s")); os.Geteuid() == 0 && hint != "" {
		t.Errorf("%q", hint)
	}
}
