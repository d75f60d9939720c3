package testkit

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Shifted is a daemon on a host with a clock that the test sets.
type Shifted struct {
	*Instance
	stdin  io.Writer
	stdout *bufio.Reader
}

// LaunchShifted runs the daemon on a host with a clock that is wrong by shift.
func (s *Site) LaunchShifted(shift time.Duration, args ...string) *Shifted {
	s.T.Helper()
	cmd := exec.Command(hooked(), s.ServeArgs(args...)...)
	// cmd/kazahanad/kztest.go reads it.
	cmd.Env = s.Environment("KZTEST_CLOCK=" + shift.String())
	stdin, err := cmd.StdinPipe()
	must.Succeed(s.T, err)
	stdout, err := cmd.StdoutPipe()
	must.Succeed(s.T, err)
	return &Shifted{s.LaunchCommand(cmd), stdin, bufio.NewReader(stdout)}
}

// Set moves the clock, and returns when it is moved.
func (d *Shifted) Set(shift time.Duration) {
	d.T.Helper()
	if _, err := fmt.Fprintln(d.stdin, shift); err != nil {
		d.T.Fatal(err)
	}
	if line, err := d.stdout.ReadString('\n'); line != "ok\n" {
		d.T.Fatalf("setting the clock: %q, %v", line, err)
	}
}
