package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// nobodyID is a user and a group without any right.
const nobodyID = 65534

// asNobody has the command run as a user without rights.
func asNobody(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	needRoot(t)
	cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, &syscall.Credential{Uid: nobodyID, Gid: nobodyID})
	return cmd
}

// TestSocketGroupReachesTheSocket: the live directory is made first, in the directory of the
// socket, which the group must pass under any umask.
func TestSocketGroupReachesTheSocket(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	runtimeDir, err := os.MkdirTemp("/dev/shm", "kz-test-")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(runtimeDir) })
	must.Succeed(t, os.Chmod(runtimeDir, 0o755))
	s.Socket = filepath.Join(runtimeDir, "kazahana", "kazahanad.sock")
	s.State = filepath.Join(runtimeDir, "above", "state")
	serve := s.Command("serve", "--config", "none", "--state-dir", s.State, "--socket-group", strconv.Itoa(nobodyID))
	serve.Env = slices.DeleteFunc(s.Environment("XDG_RUNTIME_DIR="+runtimeDir), func(one string) bool { return strings.HasPrefix(one, "KAZAHANA_LIVE_DIR=") })
	serve.Args = append([]string{"sh", "-c", `umask 077; exec "$0" "$@"`, serve.Path}, serve.Args[1:]...)
	serve.Path = "/bin/sh"
	s.LaunchCommand(serve).AwaitReady()
	for path, want := range map[string]fs.FileMode{"kazahana": 0o755, "kazahana/live": 0o700, "above": 0o755, "above/state": 0o700} {
		if info, err := os.Stat(filepath.Join(runtimeDir, path)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info, err, want)
		}
	}
	testkit.RunCommand(t, asNobody(t, s.Command("id", "--socket", s.Socket))).OK(t)

	// Another user's variable, as su and sudo -E keep it, misleads neither a daemon nor a client.
	id := asNobody(t, s.Command("id"))
	id.Env = s.Environment("XDG_RUNTIME_DIR=" + runtimeDir)
	if _, err := os.Lstat("/run/kazahana/kazahanad.sock"); err != nil {
		testkit.RunCommand(t, id).Fails(t, exitFailure, s.Socket+" (ignored: "+runtimeDir+" belongs to another user, 0, and this is user 65534)")
	}
}

func TestAllowedUsers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start("--socket-mode", "0666", "--allow-uids", strconv.Itoa(os.Geteuid()))
	s.Dial().ID()
	testkit.RunCommand(t, asNobody(t, s.Command("id", "--socket", s.Socket))).
		Fails(t, exitFailure, "PERMISSION_DENIED", fmt.Sprintf("user %d", nobodyID), "allow_uids")

	byGroup := newSite(t)
	byGroup.Launch("--socket-mode", "0666", "--allow-uids", "12345,12346", "--allow-gids", strconv.Itoa(nobodyID)).AwaitListening()
	testkit.RunCommand(t, asNobody(t, byGroup.Command("id", "--socket", byGroup.Socket))).OK(t)
	byGroup.Kazahanad("id").Fails(t, exitFailure, "PERMISSION_DENIED")

	// One of many supplementary groups is enough.
	supplementary := newSite(t)
	supplementary.Launch("--socket-mode", "0666", "--allow-gids", "70000").AwaitListening()
	var groups []uint32
	for gid := range uint32(100) {
		groups = append(groups, 69_901+gid)
	}
	member := func(groups []uint32) *exec.Cmd {
		cmd := asNobody(t, supplementary.Command("id", "--socket", supplementary.Socket))
		cmd.SysProcAttr.Credential.Groups = groups
		return cmd
	}
	testkit.RunCommand(t, member(groups)).OK(t)
	testkit.RunCommand(t, member(groups[:2])).Fails(t, exitFailure, "PERMISSION_DENIED", "user 65534 with groups 65534, 69901, 69902", "allow_gids")
}
