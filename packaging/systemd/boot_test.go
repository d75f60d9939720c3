//go:build linux

package systemd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	// patience is how long anything may take on a machine that is busy with
	// other things. Only a test that fails waits for so long.
	patience = await.Patience
	// pause is between two looks at a condition.
	pause = 20 * time.Millisecond
)

// host is a booted systemd, in namespaces of its own.
type host struct {
	t      *testing.T
	leader string // PID of its PID 1
}

// boot boots a host that has the files of stage, or skips the test and says why.
func boot(t *testing.T, stage string) *host {
	t.Helper()
	ring.All(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can boot a systemd in a namespace")
	}
	for _, tool := range []string{"systemd-nspawn", "unshare", "nsenter", "systemctl"} {
		ring.Program(t, tool)
	}
	dir := t.TempDir()
	var said bytes.Buffer
	cmd := exec.Command("unshare", "--mount", "bash", "testdata/boot.sh", dir, stage)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	cmd.WaitDelay = patience
	// The thread that starts it must live on: its end counts as the parent's.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		t.Skipf("no mount namespace: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	h := &host{t: t}
	t.Cleanup(func() {
		defer runtime.UnlockOSThread()
		h.halt(cmd, ended)
		removeGroup(t, filepath.Join(dir, "cgroup"))
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		select {
		case <-ended:
			t.Skipf("systemd cannot be booted here: %v\n%s", cmd.ProcessState, said.String())
		default:
		}
		if h.leader == "" {
			h.leader = childOf(cmd.Process.Pid)
		} else if state := h.try("systemctl", "is-system-running").out; state == "running" || state == "degraded" {
			return h
		}
		if time.Now().After(deadline) {
			t.Fatalf("systemd does not boot within %v: %s", patience, said.String())
		}
	}
}

// childOf is the PID of the systemd that a systemd-nspawn has started; "" = none.
func childOf(pid int) string {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(children)) {
		if name, _ := os.ReadFile("/proc/" + child + "/comm"); strings.TrimSpace(string(name)) == "systemd" {
			return child
		}
	}
	return ""
}

// halt ends the host at once: there is nothing on it to be saved.
func (h *host) halt(cmd *exec.Cmd, ended <-chan struct{}) {
	if pid, err := strconv.Atoi(h.leader); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL) // and with it its namespace
	} else {
		_ = cmd.Process.Kill()
	}
	select {
	case <-ended:
	case <-time.After(patience):
		h.t.Error("systemd-nspawn does not end")
		_ = cmd.Process.Kill()
		<-ended
	}
}

// removeGroup removes the control groups that were left empty.
func removeGroup(t *testing.T, note string) {
	group, err := os.ReadFile(note)
	if err != nil {
		return // it never came so far
	}
	root := strings.TrimSpace(string(group))
	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		var groups []string
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append([]string{path}, groups...)
			}
			return nil
		})
		for _, one := range groups {
			_ = syscall.Rmdir(one)
		}
		if _, err := os.Stat(root); errors.Is(err, os.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("the control group %s stays", root)
			return
		}
	}
}

// outcome is what became of a command.
type outcome struct {
	code     int
	out, err string
}

// command returns a command that runs on the host, as root.
func (h *host) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", h.leader, "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w"}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	cmd.WaitDelay = patience
	return cmd
}

func (h *host) try(args ...string) outcome {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := h.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("%v: %v", args, err)
	}
	return outcome{cmd.ProcessState.ExitCode(), strings.TrimSpace(out.String()), strings.TrimSpace(errs.String())}
}

// do runs a command that must succeed, and returns its output.
func (h *host) do(args ...string) string {
	h.t.Helper()
	o := h.try(args...)
	if o.code != 0 {
		h.t.Fatalf("%v: exit code %d: %s %s\n%s", args, o.code, o.out, o.err, h.journal())
	}
	return o.out
}

// shell runs a line of shell.
func (h *host) shell(line string) string {
	h.t.Helper()
	return h.do("bash", "-ec", line)
}

// write makes a file of root's.
func (h *host) write(path, mode, text string) {
	h.t.Helper()
	cmd := h.command(h.t.Context(), "bash", "-ec", `mkdir -p "$(dirname "$0")"; umask 077; cat >"$0"; chmod "$1" "$0"`, path, mode)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("write %s: %v: %s", path, err, out)
	}
}

func (h *host) journal() string {
	return h.try("journalctl", "--no-pager", "-o", "cat", "-n", "60", "-u", "kazahana*").out
}

func (h *host) eventually(what string, ok func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			h.t.Fatalf("not within %v: %s\n%s", patience, what, h.journal())
		}
	}
}

// show is a property of a unit.
func (h *host) show(unit, property string) string {
	h.t.Helper()
	return h.do("systemctl", "show", "--value", "-p", property, unit)
}
