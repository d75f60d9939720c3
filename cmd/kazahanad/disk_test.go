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
)

// mountTmpfs mounts a file system of its own at the path, where that is
// permitted.
func mountTmpfs(t *testing.T, path, size string) {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root of a Linux system can mount a small file system")
	}
	mkdir(t, path)
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
	mountTmpfs(t, s.state, "256k")
	d := s.start(s.brief()...)
	c := s.dial()
	last := c.id()
	fill(t, filepath.Join(s.state, "ballast"))
	machine := c.lease().MachineID
	eventually(t, "the log says that the state cannot be written", func() bool {
		id := c.id()
		if id <= last || isFallback(uint64(id)) {
			t.Fatalf("%d came after %d", id, last)
		}
		last = id
		return strings.Contains(d.log.String(), "cannot be brought to the disk")
	})
	// Leases are replaced all the same.
	eventually(t, "another lease", func() bool {
		return c.lease().MachineID != machine
	})
	if !strings.Contains(d.log.String(), s.state) {
		t.Errorf("the log does not name the place")
	}
	// The mark needs no space: a crash loses nothing, and a restart works.
	for range 2 {
		ids := s.dial().ids(5000)
		d.kill()
		d = s.start(s.brief()...)
		if id := s.dial().id(); uint64(id) <= ids[len(ids)-1] {
			t.Errorf("%d came after %d", id, ids[len(ids)-1])
		}
	}
	if err := os.Remove(filepath.Join(s.state, "ballast")); err != nil {
		t.Fatal(err)
	}
	// What is granted with space again is remembered again.
	c = s.dial()
	eventually(t, "the present lease is in the state", func() bool {
		leases, held := c.status().Services[0].Leases, s.remembered().Leases
		return len(leases) > 0 && len(held) > 0 && leases[len(leases)-1].CreatedMS == held[len(held)-1].CreatedMS
	})
}

// A start on a full disk says so, or succeeds, but leaves nothing half made.
func TestStartOnFullDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	mountTmpfs(t, s.state, "256k")
	fill(t, filepath.Join(s.state, "ballast"))
	said := s.launch("--provider", "sqlite:"+s.leases()).failsToStart(exitFailure)
	if !strings.Contains(said, s.state) || !strings.Contains(said, "space") {
		t.Errorf("it said %q", said)
	}
	if err := os.Remove(filepath.Join(s.state, "ballast")); err != nil {
		t.Fatal(err)
	}
	s.start("--provider", "sqlite:"+s.leases())
	s.dial().id()
}

func TestReadOnlyStateFileSystem(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	mountTmpfs(t, s.state, "1m")
	s.start("--provider", "sqlite:"+s.leases()).terminate()
	if out, err := exec.Command("mount", "-o", "remount,ro", s.state).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v: %s", err, out)
	}
	said := s.launch("--provider", "sqlite:"+s.leases()).failsToStart(exitFailure)
	if !strings.Contains(said, s.state) || !strings.Contains(said, "read-only") || !strings.Contains(said, "state_dir") {
		t.Errorf("it said %q", said)
	}
	s.kazahanad("state", "reset-floor", "--yes").fails(t, exitFailure, s.state, "read-only")
}

// A state directory in which this user may not write.
func TestStateDirectoryWithoutPermission(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	mkdir(t, s.state)
	if err := os.Chmod(s.state, 0o555); err != nil {
		t.Fatal(err)
	}
	s.socket = filepath.Join(s.path("free"), "d.sock")
	mkdir(t, s.path("free"))
	if err := os.Chmod(s.path("free"), 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := s.command(s.serveArgs("--provider", "none:")...)
	if os.Geteuid() == 0 {
		cmd = asNobody(t, cmd)
	}
	said := s.launchCommand(cmd).failsToStart(exitFailure)
	if !strings.Contains(said, s.state) || !strings.Contains(said, "permission denied") {
		t.Errorf("it said %q", said)
	}
	if _, err := os.Lstat(s.socket); err == nil {
		t.Error("it made its socket all the same")
	}
}
