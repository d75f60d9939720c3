package testkit

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Outcome is what became of a command.
type Outcome struct {
	Code           int
	Stdout, Stderr string
}

// Kazahanad runs a subcommand against the site's socket and state directory.
func (s *Site) Kazahanad(args ...string) Outcome {
	s.T.Helper()
	cmd := s.Command(args...)
	cmd.Env = s.Environment("KAZAHANA_SOCKET="+s.Socket, "KAZAHANA_STATE_DIR="+s.State)
	return RunCommand(s.T, cmd)
}

func RunCommand(t *testing.T, cmd *exec.Cmd) Outcome {
	t.Helper()
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil)
	}
	cmd.WaitDelay = await.Patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	overdue := time.AfterFunc(await.Patience, func() { _ = cmd.Process.Kill() })
	defer overdue.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if strings.Contains(err.String(), "DATA RACE") {
		t.Errorf("%v: %s", cmd.Args, err.String())
	}
	return Outcome{cmd.ProcessState.ExitCode(), out.String(), err.String()}
}

// OK is the standard output of a command that must succeed, silently.
func (o Outcome) OK(t *testing.T) string {
	t.Helper()
	if o.Code != 0 || o.Stderr != "" {
		t.Fatalf("exit code %d, stdout %q, stderr %q; want success", o.Code, o.Stdout, o.Stderr)
	}
	return o.Stdout
}

// Fails checks that a command failed with one line that has all the words.
func (o Outcome) Fails(t *testing.T, code int, words ...string) {
	t.Helper()
	if o.Code != code {
		t.Errorf("exit code %d, want %d; stderr: %s", o.Code, code, o.Stderr)
	}
	said, ok := Fatal(o.Stderr)
	if !ok || strings.Count(o.Stderr, "\n") != 1 {
		t.Errorf("stderr is %q, want one line that tells an error", o.Stderr)
	}
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("stderr is %q, want %q in it", o.Stderr, w)
		}
	}
}

// Inspected is what the command line says of an ID.
func (s *Site) Inspected(id snowflake.ID, flags ...string) snowflake.Inspection {
	s.T.Helper()
	var in struct {
		snowflake.Inspection
		ID string `json:"id"`
	}
	DecodeJSON(s.T, s.Kazahanad(append([]string{"inspect", "--json", fmt.Sprint(int64(id))}, flags...)...).OK(s.T), &in)
	if in.ID != fmt.Sprint(int64(id)) {
		s.T.Errorf("inspect of %d speaks of %s", id, in.ID)
	}
	return in.Inspection
}

// Says is fails for a command that speaks of its progress before.
func (o Outcome) Says(t *testing.T, code int, words ...string) {
	t.Helper()
	lines := strings.SplitAfter(strings.TrimSuffix(o.Stderr, "\n"), "\n")
	o.Stderr = lines[len(lines)-1] + "\n"
	o.Fails(t, code, words...)
}
