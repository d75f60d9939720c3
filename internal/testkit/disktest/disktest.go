// Package disktest gives tests file systems of their own: an ext4 on a loop
// device, which reuses inodes, can be frozen and mounted again elsewhere, and a
// directory in memory. Where the machine lacks a tool or a right, the test is skipped by
// name.
package disktest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// imageSize is the size of the file system.
const imageSize = 64 << 20

// Disk is an ext4 in a file.
type Disk struct {
	t       testing.TB
	image   string
	dir     string // where it is mounted; "" = nowhere
	guard   *exec.Cmd
	release io.Closer // ends the guard
}

// Ext4 makes a file system, with options of mkfs, which is mounted until the test
// ends.
func Ext4(t testing.TB, options ...string) *Disk {
	t.Helper()
	ring.All(t)
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root of a Linux system can mount an ext4")
	}
	d := &Disk{t: t, image: filepath.Join(t.TempDir(), "image")}
	must.Succeed(t, os.WriteFile(d.image, nil, 0o600))
	must.Succeed(t, os.Truncate(d.image, imageSize))
	if out, err := exec.Command("mkfs.ext4", append([]string{"-q", "-F", d.image}, options...)...).CombinedOutput(); err != nil {
		t.Skipf("no ext4 can be made: %v: %s", err, out)
	}
	if err := d.mount(); err != nil {
		t.Skipf("no loop device can be had: %v", err)
	}
	t.Cleanup(d.unmount)
	return d
}

// Dir is where the file system is mounted.
func (d *Disk) Dir() string { return d.dir }

// Remount mounts it in another place, as on another host.
func (d *Disk) Remount() {
	d.t.Helper()
	d.unmount()
	must.Succeed(d.t, d.mount())
}

func (d *Disk) mount() error {
	dir, err := os.MkdirTemp("", "kazahana-disk-")
	if err != nil {
		return err
	}
	if out, err := exec.Command("mount", "-o", "loop", d.image, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s%v", err, out, os.Remove(dir))
	}
	d.dir = dir
	// A test that ends without its cleanup, as by a timeout, leaves nothing frozen
	// or mounted behind: its end of the pipe closes.
	d.guard = exec.Command("sh", "-c", `read _; fsfreeze -u "$1"; umount -l "$1" && rmdir "$1"`, "guard", dir)
	in, err := d.guard.StdinPipe()
	if err != nil {
		return err
	}
	d.release = in
	return d.guard.Start()
}

func (d *Disk) unmount() {
	if d.dir == "" {
		return
	}
	d.Thaw()
	// What a freeze held up may still be closing its files.
	var out []byte
	var err error
	for deadline := time.Now().Add(await.Patience); ; time.Sleep(10 * time.Millisecond) {
		if out, err = exec.Command("umount", d.dir).CombinedOutput(); err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		d.t.Errorf("umount: %v: %s", err, out)
	} else if err := os.Remove(d.dir); err != nil {
		d.t.Error(err)
	}
	d.dir = ""
	_ = d.release.Close()
	_ = d.guard.Wait() // it finds nothing left to do, and says so
}

// Freeze has everything that writes wait, in the kernel, until Thaw.
func (d *Disk) Freeze() {
	d.t.Helper()
	if out, err := exec.Command("fsfreeze", "-f", d.dir).CombinedOutput(); err != nil {
		d.t.Skipf("the file system cannot be frozen: %v: %s", err, out)
	}
	d.t.Cleanup(d.Thaw) // before processes that were started earlier are waited for
}

// Thaw ends a freeze, where there is one.
func (d *Disk) Thaw() { _ = exec.Command("fsfreeze", "-u", d.dir).Run() }

// Memory is a new directory on a file system in memory.
func Memory(t testing.TB) string {
	t.Helper()
	dir := MemoryIfAny(t)
	if dir == "" {
		t.Skip("there is no file system in memory")
	}
	return dir
}

// MemoryIfAny is Memory for a test that does without where there is none: "".
func MemoryIfAny(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		return ""
	}
	dir, err := os.MkdirTemp("/dev/shm", "kazahana-live-")
	if err != nil {
		return ""
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Reboot empties a directory in memory.
func Reboot(t testing.TB, live string) {
	t.Helper()
	must.Succeed(t, os.RemoveAll(live))
	must.Succeed(t, os.Mkdir(live, 0o700))
}

// Run runs a command that has to succeed.
func Run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// Small mounts a file system in memory of that size, for example "2m", until the test ends.
func Small(t testing.TB, size string) (dir string) {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root of a Linux system can mount a file system")
	}
	dir = t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "none", dir).CombinedOutput(); err != nil {
		t.Skipf("no file system in memory can be mounted: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// Fill writes a file until the disk is full. free removes it.
func Fill(t testing.TB, path string) (free func()) {
	t.Helper()
	f, err := os.Create(path)
	must.Succeed(t, err)
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}
