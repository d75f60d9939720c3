package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// What the tests' binary says of itself.
const (
	testVersion = "v9.8.7-test"
	testCommit  = "0123456789abcdef"
)

// executable is the daemon under test. TestMain builds it.
var executable string

// The test binary plays other processes: with childEnv set it runs one of
// childModes on its arguments, and no test. The name does not begin with
// KAZAHANA_, where the daemon refuses what it does not know.
const childEnv = "KZTEST_CHILD"

var childModes = map[string]func(args []string) error{
	"daemon":  childDaemon,
	"storm":   childStorm,
	"locks":   childLocks,
	"foreign": childForeign,
}

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		if err := childModes[mode](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The daemons of the tests are hung up on, also where the tests themselves ignore it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	dir, err := buildBinary()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// buildBinary builds what is shipped, or the same with the race detector.
func buildBinary() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "kz-bin-"); err != nil {
		return "", err
	}
	// Some tests run it as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, err
	}
	executable = filepath.Join(dir, "kazahanad")
	args := []string{"build", "-o", executable, "-buildvcs=false",
		"-ldflags", "-s -w -X main.version=" + testVersion + " -X main.commit=" + testCommit}
	cgo := "CGO_ENABLED=0"
	if raceEnabled {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, nil
}
