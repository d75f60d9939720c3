package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// mountTmpfs mounts a file system of its own at the path, where that is
// permitted.
func mountTmpfs(t *testing.T, path, size string) {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root of a Linux system can mount a small file system")
	}
	testkit.Mkdir(t, path)
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size+",mode=700", "kazahana-test", path).CombinedOutput(); err != nil {
		t.Skipf("mounting is not permitted: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", path).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
}

// fill writes a file until the file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := make([]byte, 4096); ; {
		if _, err := f.Write(chunk); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A full disk under the state directory stops no IDs. It is logged, and once
// there is space again all is as before.
func TestStateDiskFull(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	mountTmpfs(t, s.State, "256k")
	d := s.Start(s.Brief()...)
	c := s.Dial()
	last := c.ID()
	fill(t, filepath.Join(s.State, "ballast"))
	machine := c.Lease().MachineID
	await.Eventually(t, "the log says that the state cannot be written", func() bool {
		id := c.ID()
		if id <= last || testkit.IsFallback(uint64(id)) {
			t.Fatalf("%d came after %d", id, last)
		}
		last = id
		return strings.Contains(d.Log.String(), "cannot be brought to the disk")
	})
	// Leases are replaced all the same.
	await.Eventually(t, "another lease", func() bool {
		return c.Lease().MachineID != machine
	})
	if !strings.Contains(d.Log.String(), s.State) {
		t.Errorf("the log does not name the place")
	}
	// The mark needs no space: a crash loses nothing, and a restart works.
	for range 2 {
		ids := s.Dial().IDs(5000)
		d.Kill()
		d = s.Start(s.Brief()...)
		if id := s.Dial().ID(); uint64(id) <= ids[len(ids)-1] {
			t.Errorf("%d came after %d", id, ids[len(ids)-1])
		}
	}
	if err := os.Remove(filepath.Join(s.State, "ballast")); err != nil {
		t.Fatal(err)
	}
	// What is granted with space again is remembered again.
	c = s.Dial()
	await.Eventually(t, "the present lease is in the state", func() bool {
		leases, held := c.Status().Services[0].Leases, s.remembered().Leases
		return len(leases) > 0 && len(held) > 0 && leases[len(leases)-1].CreatedMS == held[len(held)-1].CreatedMS
	})
}

// A start on a full disk says so, or succeeds, but leaves nothing half made.
func TestStartOnFullDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	mountTmpfs(t, s.State, "256k")
	fill(t, filepath.Join(s.State, "ballast"))
	said := s.Launch("--provider", "sqlite:"+s.Leases()).FailsToStart(exitFailure)
	if !strings.Contains(said, s.State) || !strings.Contains(said, "space") {
		t.Errorf("it said %q", said)
	}
	if err := os.Remove(filepath.Join(s.State, "ballast")); err != nil {
		t.Fatal(err)
	}
	s.Start("--provider", "sqlite:"+s.Leases())
	s.Dial().ID()
}

func TestReadOnlyStateFileSystem(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	mountTmpfs(t, s.State, "1m")
	s.Start("--provider", "sqlite:"+s.Leases()).Terminate()
	if out, err := exec.Command("mount", "-o", "remount,ro", s.State).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v: %s", err, out)
	}
	said := s.Launch("--provider", "sqlite:"+s.Leases()).FailsToStart(exitFailure)
	if !strings.Contains(said, s.State) || !strings.Contains(said, "read-only") || !strings.Contains(said, "state_dir") {
		t.Errorf("it said %q", said)
	}
	s.Kazahanad("state", "reset-floor", "--yes").Fails(t, exitFailure, s.State, "read-only")
}

// A state directory in which this user may not write.
func TestStateDirectoryWithoutPermission(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	testkit.Mkdir(t, s.State)
	if err := os.Chmod(s.State, 0o555); err != nil {
		t.Fatal(err)
	}
	s.Socket = filepath.Join(s.Path("free"), "d.sock")
	testkit.Mkdir(t, s.Path("free"))
	if err := os.Chmod(s.Path("free"), 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := s.Command(s.ServeArgs("--provider", "none:")...)
	if os.Geteuid() == 0 {
		cmd = asNobody(t, cmd)
	}
	said := s.LaunchCommand(cmd).FailsToStart(exitFailure)
	if !strings.Contains(said, s.State) || !strings.Contains(said, "permission denied") {
		t.Errorf("it said %q", said)
	}
	if _, err := os.Lstat(s.Socket); err == nil {
		t.Error("it made its socket all the same")
	}
}
