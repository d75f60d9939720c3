// Package clienttest has daemons for the tests of this module: real ones, and ones that a test
// scripts word by word.
package clienttest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Patience is how long anything may take on a machine that is busy with other work.
const Patience = 2 * time.Minute

// executable is the daemon: the binary that KAZAHANAD names, or a binary that the first call
// builds in builtIn.
var executable = sync.OnceValue(func() string {
	if path := os.Getenv("KAZAHANAD"); path != "" {
		return path
	}
	path := filepath.Join(builtIn, "kazahanad")
	build := exec.Command("go", "build", "-tags", "grpcnotrace,nopgxregisterdefaulttypes", "-o", path, "./cmd/kazahanad")
	build.Dir = repository()
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("the daemon does not build: %s", out))
	}
	return path
})

// repository is the repository's root: these tests do not run outside of it.
func repository() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
}

var builtIn string

// Main runs the tests, and fails if they leave goroutines of this module behind.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kz-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	builtIn = dir
	code := m.Run()
	for end := time.Now().Add(Patience); code == 0; time.Sleep(10 * time.Millisecond) {
		left := goroutines()
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", strings.Join(left, "\n\n"))
			return 1
		}
	}
	return code
}

// goroutines returns the goroutines of this module, except the tests' own.
func goroutines() (all []string) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for _, one := range strings.Split(string(stacks), "\n\n") {
		if strings.Contains(one, "kazahana/clients/go") && !strings.Contains(one, "clienttest.goroutines") {
			all = append(all, one)
		}
	}
	return all
}

// Daemon is a kazahanad of one test, which can be killed and started again.
type Daemon struct {
	Socket string
	Cmd    *exec.Cmd // nil while it does not run

	t    testing.TB
	dir  string
	args []string
	log  bytes.Buffer
}

// NewDaemon starts a daemon. It skips the test in the fast ring.
func NewDaemon(t testing.TB, args ...string) *Daemon {
	t.Helper()
	if ring := os.Getenv("KZTEST_RING"); ring != "all" && ring != "deep" {
		t.Skip("it needs a daemon: KZTEST_RING=all runs it")
	}
	dir, err := os.MkdirTemp("", "kz-") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{t: t, dir: dir, Socket: filepath.Join(dir, "d.sock"), args: args}
	t.Cleanup(func() {
		d.Kill()
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.log.Bytes())
		}
		_ = os.RemoveAll(dir)
	})
	d.Start()
	return d
}

// Start starts it again.
func (d *Daemon) Start() {
	d.t.Helper()
	args := append([]string{
		"serve", "--config", "none", "--socket", d.Socket, "--state-dir", filepath.Join(d.dir, "state"),
		"--startup-wait", "1m", "--provider-timeout", "1m", // a busy machine is no failure
	}, d.args...)
	d.Cmd = exec.Command(executable(), args...)
	d.Cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.dir}
	d.Cmd.Stderr = &d.log
	if err := d.Cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

// Await waits until the daemon can be connected to. A client that was never connected
// waits for a second only, and a busy machine starts no daemon in that time.
func (d *Daemon) Await() {
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", d.Socket); err == nil {
			_ = conn.Close()
			return
		}
	}
	d.t.Fatal("the daemon does not begin")
}

// Kill ends the daemon without a word.
func (d *Daemon) Kill() {
	if d.Cmd != nil {
		_ = d.Cmd.Process.Kill()
		_ = d.Cmd.Wait()
		d.Cmd = nil
	}
}

// Terminate lets the daemon drain.
func (d *Daemon) Terminate() {
	_ = d.Cmd.Process.Signal(os.Interrupt)
	_ = d.Cmd.Wait()
	d.Cmd = nil
}
