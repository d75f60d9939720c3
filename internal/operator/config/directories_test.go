package config

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func lookupIn(variables map[string]string) Lookup {
	return func(name string) (string, bool) {
		text, ok := variables[name]
		return text, ok
	}
}

func TestDaemonSocketOfLastResort(t *testing.T) {
	s := mustLoad(t, sourceTexts{uid: 7, env: []string{"HOME=/h"}})
	if !s.SocketInTmp || s.Socket != "/tmp/kazahana-7/kazahanad.sock" || s.StateDir != "/h/.local/state/kazahana" {
		t.Errorf("%+v", s)
	}
	s = mustLoad(t, sourceTexts{uid: 7, env: []string{"HOME=/h", "KAZAHANA_SOCKET=unix:///tmp/kazahana-7/kazahanad.sock"}})
	if s.SocketInTmp {
		t.Error("an explicit socket is no last resort")
	}
}

// ofUser is a directory of a user other than root.
func ofUser(t *testing.T) (dir string, uid int) {
	t.Helper()
	dir, uid = t.TempDir(), os.Geteuid()
	if uid == 0 {
		uid = 1000
		must.Succeed(t, os.Chown(dir, uid, -1))
	}
	return dir, uid
}

func TestDaemonStateDir(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		uid  int
		want string
	}{
		{map[string]string{"XDG_STATE_HOME": "/s"}, 0, "/var/lib/kazahana"},
		{nil, 0, "/var/lib/kazahana"},
		{map[string]string{"STATE_DIRECTORY": "/var/lib/x", "XDG_STATE_HOME": "/s"}, 0, "/var/lib/x"},
		{map[string]string{"STATE_DIRECTORY": "/var/lib/x:/var/lib/y"}, 33, "/var/lib/x"},
		{map[string]string{"XDG_STATE_HOME": "/s", "HOME": "/h"}, 0, "/var/lib/kazahana"},
		{map[string]string{"XDG_STATE_HOME": "/s", "HOME": "/h"}, 1000, "/s/kazahana"},
		{map[string]string{"XDG_STATE_HOME": "s", "HOME": "/h"}, 1000, "/h/.local/state/kazahana"},
		{map[string]string{"HOME": "/h"}, 1000, "/h/.local/state/kazahana"},
	} {
		got, err := daemonStateDir(lookupIn(c.env), c.uid)
		if got != c.want || err != nil {
			t.Errorf("%v, uid %d: %s, %v", c.env, c.uid, got, err)
		}
	}
	if _, err := daemonStateDir(lookupIn(nil), 1000); err == nil {
		t.Error("no home, and no error")
	}
}

func TestLivePlaces(t *testing.T) {
	own, me := ofUser(t)
	for _, c := range []struct {
		env  map[string]string
		uid  int
		want []string
	}{
		{nil, 0, []string{"/run/kazahana/live", "/dev/shm/kazahana-0"}},
		{map[string]string{"RUNTIME_DIRECTORY": "/run/kazahana:/run/kazahana-live"}, 999, []string{"/run/kazahana-live", "/dev/shm/kazahana-999"}},
		{map[string]string{"RUNTIME_DIRECTORY": "/run/kazahana"}, 999, []string{"/dev/shm/kazahana-999"}},
		{map[string]string{"XDG_RUNTIME_DIR": own}, me, []string{own + "/kazahana/live", fmt.Sprintf("/dev/shm/kazahana-%d", me)}},
		{map[string]string{"XDG_RUNTIME_DIR": own}, me + 1, []string{fmt.Sprintf("/dev/shm/kazahana-%d", me+1)}},
	} {
		if got := livePlaces(lookupIn(c.env), c.uid); !slices.Equal(got, c.want) {
			t.Errorf("%v, uid %d: %v, want %v", c.env, c.uid, got, c.want)
		}
	}
	s := mustLoad(t, sourceTexts{env: []string{"KAZAHANA_LIVE_DIR=/x"}})
	if dir, places := s.LiveDirs(); dir != "/x" || places != nil {
		t.Errorf("live_dir %q, or one of %v", dir, places)
	}
}
