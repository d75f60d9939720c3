package state

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// The test binary plays other processes: with childEnv set it runs one of the
// functions below on the directory in childDirEnv, and no test.
const (
	childEnv    = "KAZAHANA_STATE_TEST_CHILD"
	childDirEnv = "KAZAHANA_STATE_TEST_DIR"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		if err := childModes[mode](os.Getenv(childDirEnv)); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var childModes = map[string]func(dir string) error{
	"hold":           childHold,
	"try":            childTry,
	"raise":          childRaise,
	"save":           childSave,
	"crash-in-reset": childCrashInReset,
}

// childHold keeps the directory until its standard input ends.
func childHold(dir string) error {
	s, err := Open(dir, testOptions())
	if err != nil {
		return err
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	return s.Close()
}

// childTry opens the directory and makes a service.
func childTry(dir string) error {
	s, err := Open(dir, testOptions())
	if err != nil {
		return err
	}
	if _, err := s.Service("default"); err != nil {
		return err
	}
	return s.Close()
}

// childRaise raises the mark by one without end, and reports each value only
// when the mark has it.
func childRaise(dir string) error {
	s, err := Open(dir, testOptions())
	if err != nil {
		return err
	}
	sv, err := s.Service("default")
	if err != nil {
		return err
	}
	for v := sv.Mark() + 1; ; v++ {
		sv.RaiseMark(v)
		if err := report(v); err != nil {
			return err
		}
	}
}

// childSave saves one content after the other, each told by its lease's
// Created.
func childSave(dir string) error {
	s, err := Open(dir, testOptions())
	if err != nil {
		return err
	}
	sv, err := s.Service("default")
	if err != nil {
		return err
	}
	created := int64(0)
	if held := sv.Load().Held; len(held) > 0 {
		created = held[0].Created
	}
	for {
		created++
		l := testLease(7, created)
		if err := sv.Save(savedWith(l)); err != nil {
			return err
		}
		if err := report(created); err != nil {
			return err
		}
	}
}

func report(v int64) error {
	_, err := os.Stdout.Write(binary.NativeEndian.AppendUint64(nil, uint64(v)))
	return err
}

func childCrashInReset(dir string) error {
	_, err := resetFloor(dir, "", resetTo, testOptions(), func() {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	})
	return err
}

// child is a running child process.
type child struct {
	*exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func startChild(t *testing.T, mode, dir string, credential *syscall.Credential) *child {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if credential != nil {
		path = "/proc/self/exe" // go test's own directory is closed to other users
	}
	cmd := exec.Command(path)
	// GORACE: under the race detector a process sleeps for a second at its end.
	cmd.Env = append(os.Environ(), childEnv+"="+mode, childDirEnv+"="+dir, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &child{Cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout)}
}

// kill ends the child with SIGKILL and returns what it had still reported.
func (c *child) kill(t *testing.T) []byte {
	t.Helper()
	if err := c.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(c.stdout)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); !strings.Contains(fmt.Sprint(err), "killed") {
		t.Fatalf("the child was to be killed, and ended with: %v %s", err, rest)
	}
	return rest
}

func testOptions() Options {
	return Options{Identity: func() Identity { return Identity{MachineID: "machine a", BootID: "boot a"} }}
}

func testLease(id, created int64) lease.Lease {
	return lease.Lease{
		ID: id, Created: created, Expired: created + 600_000, ReservedUntil: created + 1_200_000,
		Secret: fmt.Sprintf("secret-%d-%d", id, created), EpochMS: snowflake.DefaultEpochMS,
		BitReserve: 1, BitTS: 41, BitID: 14, BitSeq: 8,
	}
}

func savedWith(held ...lease.Lease) Saved {
	return Saved{Held: held, Timeline: snowflake.DefaultTimeline(), Source: SourceLease}
}

func mustOpen(t testing.TB, dir string, opts Options) *State {
	t.Helper()
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func mustService(t testing.TB, s *State, name string) *Service {
	t.Helper()
	sv, err := s.Service(name)
	if err != nil {
		t.Fatal(err)
	}
	return sv
}

func mustSave(t testing.TB, sv *Service, saved Saved) {
	t.Helper()
	if err := sv.Save(saved); err != nil {
		t.Fatal(err)
	}
}

func mustClose(t testing.TB, s *State) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// newState makes a directory whose service "default" has leases and a mark.
func newState(t testing.TB) (dir string, saved Saved) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	s := mustOpen(t, dir, testOptions())
	sv := mustService(t, s, "default")
	saved = savedWith(testLease(3, 1000), testLease(9, 2000))
	cached := testLease(5, 500)
	saved.Cached = &cached
	saved.Offered = &snowflake.Timeline{EpochMS: 5, BitTS: 42}
	mustSave(t, sv, saved)
	sv.RaiseMark(1_800_000_000_000)
	mustClose(t, s)
	return dir, saved
}

// tmpfs mounts a file system of that size, or skips the test.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("a small file system is needed, and mounting one is not permitted: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// memoryDir is a directory where a sync costs nothing, for tests that save
// thousands of times; an ordinary one where there is no such thing.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "state")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp -a: %v: %s", err, out)
	}
	return to
}
