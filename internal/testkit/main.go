// Package testkit runs real daemons in tests: a Site is a place with directories of its
// own, an Instance is a process that runs there, a Client asks it.
package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// What the binary under test says of itself.
const (
	Version = "v9.8.7-test"
	Commit  = "0123456789abcdef"
)

// ChildEnv makes the test binary play another process. Its name does not begin with
// KAZAHANA_, because the daemon refuses a variable of that kind that it does not know.
const ChildEnv = "KZTEST_CHILD"

// sharedEnv names a directory in which the packages share the daemons that they build.
const sharedEnv = "KZTEST_BIN"

// binDir holds what Executable builds, unless it is shared. Main makes and removes it.
var binDir string

// Main is the TestMain of a package that runs daemons. With ChildEnv set, the process
// runs that one of the children on its arguments, and no test.
func Main(m *testing.M, children map[string]func(args []string) error) {
	if name := os.Getenv(ChildEnv); name != "" {
		if err := runChild(children[name]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// A signal that the tests ignore, their daemons would ignore too.
	for _, sig := range []os.Signal{syscall.SIGHUP, os.Interrupt} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	var err error
	if binDir, err = os.MkdirTemp("", "kz-bin-"); err == nil {
		err = os.Chmod(binDir, 0o755) // some tests run the daemon as another user
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(await.Run(m, func() { _ = os.RemoveAll(binDir) }))
}

func runChild(child func(args []string) error) error {
	if child == nil {
		return fmt.Errorf("%s is %q, which this binary does not play", ChildEnv, os.Getenv(ChildEnv))
	}
	return child(os.Args[1:])
}

var (
	shipped = sync.OnceValue(func() string { return build("kazahanad", "grpcnotrace,nopgxregisterdefaulttypes") })
	hooked  = sync.OnceValue(func() string { return build("kazahanad-kztest", "grpcnotrace,nopgxregisterdefaulttypes,kztest") })
)

// takeTurn locks the directory, which it makes if need be. It waits while another process
// holds the lock. Closing the file gives the lock back.
func takeTurn(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	return f, err
}

// Executable is the daemon as it is shipped, or the same with the race detector. The
// first call builds it.
func Executable() string { return shipped() }

func build(name, tags string) string {
	if binDir == "" {
		panic(errors.New("the TestMain of this package does not call testkit.Main"))
	}
	path := filepath.Join(binDir, name)
	if shared := os.Getenv(sharedEnv); shared != "" {
		path = filepath.Join(shared, fmt.Sprintf("race-%v", ring.Race), name)
		turn, err := takeTurn(filepath.Dir(path))
		if err != nil {
			panic(err)
		}
		defer turn.Close()
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	args := []string{"build", "-o", path, "-buildvcs=false", "-tags", tags,
		"-ldflags", "-s -w -X main.version=" + Version + " -X main.commit=" + Commit}
	// Each compiles as others do, to share what they compiled: the shipped daemon, or the
	// tests with the race detector.
	how, cgo := "-trimpath", "CGO_ENABLED=0"
	if ring.Race {
		how, cgo = "-race", "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", append(append(args, how), "github.com/kazahana/kazahana/cmd/kazahanad")...)
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Errorf("go build: %w\n%s", err, out))
	}
	return path
}
