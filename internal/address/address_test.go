package address

import (
	"errors"
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

func TestDaemon(t *testing.T) {
	for _, c := range []struct {
		env   map[string]string
		uid   int
		want  string
		inTmp bool
	}{
		{nil, 0, "/run/kazahana/kazahanad.sock", false},
		{nil, 1000, "/tmp/kazahana-1000/kazahanad.sock", true},
		{map[string]string{"XDG_RUNTIME_DIR": "/run/user/1000"}, 1000, "/run/user/1000/kazahana/kazahanad.sock", false},
		{map[string]string{"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/user/0/kazahana/kazahanad.sock", false},
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

func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		env      map[string]string
		uid      int
		want     []string
		explicit bool
	}{
		{nil, 1000, []string{"/run/kazahana/kazahanad.sock", "/tmp/kazahana-1000/kazahanad.sock"}, false},
		{map[string]string{"XDG_RUNTIME_DIR": "/x", "RUNTIME_DIRECTORY": "/r"}, 0,
			[]string{"/x/kazahana/kazahanad.sock", "/run/kazahana/kazahanad.sock", "/tmp/kazahana-0/kazahanad.sock"}, false},
		{map[string]string{"KAZAHANA_SOCKET": "/a", "XDG_RUNTIME_DIR": "/x"}, 0, []string{"/a"}, true},
		{map[string]string{"KAZAHANA_SOCKET": "unix:///a/b"}, 0, []string{"/a/b"}, true},
		{map[string]string{"KAZAHANA_SOCKET": " "}, 0, []string{"/run/kazahana/kazahanad.sock", "/tmp/kazahana-0/kazahanad.sock"}, false},
	} {
		got, explicit := Candidates(lookupIn(c.env), c.uid)
		if !slices.Equal(got, c.want) || explicit != c.explicit {
			t.Errorf("%v: %v, %v", c.env, got, explicit)
		}
	}
}

// listen makes a socket and whatever directories it needs.
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
	uid := os.Getuid()

	t.Run("the first that exists", func(t *testing.T) {
		for _, paths := range [][]string{{missing, first, second}, {first, second}, {first, file}, {file + "/below", first}} {
			got, err := find(paths, false, missing2, uid)
			if err != nil || got != first {
				t.Errorf("%v: %s, %v", paths, got, err)
			}
		}
	})
	t.Run("none exists", func(t *testing.T) {
		_, err := find([]string{missing, missing2}, false, missing2, uid)
		wantError(t, err, missing+" (no such file or directory)", missing2, "KAZAHANA_SOCKET", "kazahanad serve")
		if _, ok := errors.AsType[*NotFoundError](err); !ok || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%T", err)
		}
	})
	t.Run("not a socket", func(t *testing.T) {
		_, err := find([]string{file, first}, false, missing2, uid)
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
		_, err := find([]string{closed, missing}, false, missing2, uid)
		wantError(t, err, closed+" (permission denied)", missing, "belongs to group")
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%T", err)
		}
	})
}

// Below /tmp anybody can make the directory first.
func TestSocketInTmpIsTrustedOnlyFromItsOwner(t *testing.T) {
	dir := ring.Dir(t)
	path, uid := listen(t, filepath.Join(dir, "own", "s")), os.Getuid()
	trust := func(path string, uid int) error {
		_, err := find([]string{path}, false, path, uid)
		return err
	}
	if err := trust(path, uid); err != nil {
		t.Error(err)
	}
	wantError(t, trust(path, uid+1), "belongs to another user")
	must.Succeed(t, os.Symlink(filepath.Dir(path), filepath.Join(dir, "link")))
	wantError(t, trust(filepath.Join(dir, "link", "s"), uid), "is not a directory")
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
		0o700: "--socket-group", // joining its group would not help
	} {
		must.Succeed(t, os.Chmod(dir, mode))
		if hint := DenialHint(path); !strings.Contains(hint, want) {
			t.Errorf("mode %o: %q, want %q in it", mode, hint, want)
		}
	}
	if hint := DenialHint("/etc/passwd"); !strings.Contains(hint, "--socket-group") || strings.Contains(hint, "usermod") {
		t.Errorf("root's group: %q", hint)
	}
	if hint := DenialHint(filepath.Join(path, "deeper", "s")); hint != "" {
		t.Errorf("%q", hint)
	}
}
