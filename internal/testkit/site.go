package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/folder"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Brief has a provider's leases end soon, and failures be noticed and forgotten
// soon, so that an outage of a second shows.
func (s *Site) Brief(more ...string) []string {
	return append([]string{
		"--provider", "sqlite:" + s.Leases() + "?term=2s&quarantine=1s",
		"--acquire-retry-interval", "100ms", "--acquire-retry-max-interval", "200ms", "--verify-interval", "500ms",
	}, more...)
}

// Leases is the provider's file.
func (s *Site) Leases() string { return s.Path("leases.db") }

// Site is where the daemons of one test live.
type Site struct {
	T      *testing.T
	Dir    string // open to everybody, and short: a socket's path may have 103 bytes
	Socket string
	State  string
	Live   string // "none" where there is no file system in memory
	Env    []string
}

// NewSite makes the directories. A test that has a site belongs to the ring all.
func NewSite(t *testing.T) *Site {
	t.Helper()
	ring.All(t)
	dir, err := os.MkdirTemp("", "kz-")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.Succeed(t, os.Chmod(dir, 0o755))
	return &Site{T: t, Dir: dir, Socket: filepath.Join(dir, "d.sock"), State: filepath.Join(dir, "state"), Live: siteLiveDir(t)}
}

// siteLiveDir names a live directory, which a daemon of any user can make. No test uses a
// directory of the machine's own daemons.
func siteLiveDir(t *testing.T) string {
	t.Helper()
	const shm = "/dev/shm"
	if !folder.InMemory(shm) {
		return "none"
	}
	dir, err := os.MkdirTemp(shm, "kz-")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.Succeed(t, os.Chmod(dir, 0o777))
	return filepath.Join(dir, "live")
}

func (s *Site) Path(name string) string { return filepath.Join(s.Dir, name) }

// Environment is what processes of the site have, and nothing of the person's
// who runs the tests.
func (s *Site) Environment(more ...string) []string {
	// With the race detector every process would sleep a second when it ends.
	// On a busy machine the provider's calls wait for the disk for longer than by default.
	own := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.Dir, "GORACE=atexit_sleep_ms=0", "KAZAHANA_LIVE_DIR=" + s.Live,
		"KAZAHANA_PROVIDER_TIMEOUT=1m"}
	return slices.Concat(own, s.Env, more)
}

// ServeArgs lets requests wait for the first lease, which takes longer than by default on
// a busy machine.
func (s *Site) ServeArgs(more ...string) []string {
	return append([]string{
		"serve", "--config", "none", "--socket", s.Socket, "--state-dir", s.State, "--startup-wait", "1m",
	}, more...)
}

// Start runs the daemon, and returns when it answers.
func (s *Site) Start(args ...string) *Instance {
	s.T.Helper()
	d := s.Launch(args...)
	d.AwaitReady()
	return d
}

// Launch runs the daemon.
func (s *Site) Launch(args ...string) *Instance {
	s.T.Helper()
	return s.LaunchCommand(s.Command(s.ServeArgs(args...)...))
}

func (s *Site) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(Executable(), args...)
	cmd.Env = s.Environment()
	return cmd
}

func (s *Site) LaunchCommand(cmd *exec.Cmd) *Instance {
	s.T.Helper()
	d := &Instance{T: s.T, Site: s, Cmd: cmd, Log: &Log{}, Ended: make(chan struct{})}
	if cmd.Stderr == nil {
		cmd.Stderr = d.Log
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil)
	}
	cmd.WaitDelay = await.Patience
	must.Succeed(s.T, cmd.Start())
	go func() {
		d.Err = cmd.Wait()
		close(d.Ended)
	}()
	s.T.Cleanup(func() {
		d.Kill()
		d.examine()
	})
	return d
}
