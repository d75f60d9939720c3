package main

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/runner/child"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// allSignals says which signals it gets, and its PID first.
const allSignals = `
import os, signal
for number in range(1, 65):
    try:
        signal.signal(number, lambda number, _: os.write(1, b"got %d\n" % number))
    except (OSError, ValueError):
        pass
print(os.getpid(), flush=True)
while True:
    signal.pause()
`

// Without a terminal CMD gets every signal that a process can get and the Go runtime
// delivers, under run and under lock.
func TestAllSignalsArePassedOn(t *testing.T) {
	ring.All(t)
	t.Parallel()
	s := newSite(t)
	s.Launch().AwaitReady()
	program := []string{"--", "python3", "-c", allSignals}
	for name, args := range map[string][]string{
		"run":  {"run", "-q", "--config", "none", "--provider", "sqlite:" + s.Path("numbers.db")},
		"lock": {"lock", "job", "-q", "--socket", s.Socket},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := s.Command(append(args, program...)...)
			cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil)
			cmd.SysProcAttr.Setsid = true // without a terminal
			d, out := s.firstLine(cmd)
			for sig := syscall.Signal(1); sig <= child.LastSignal; sig++ {
				if !child.PassedOn(sig) {
					continue
				}
				_ = d.Cmd.Process.Signal(sig)
				await.Eventually(t, fmt.Sprintf("CMD gets signal %d", sig), func() bool { return strings.Contains(out.String(), fmt.Sprintf("got %d\n", sig)) })
			}
		})
	}
}

// Without a terminal the signals of job control do to CMD what they do without kazahanad,
// which goes on.
func TestJobControlWithoutATerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cmd := s.Command(s.runArgs("term=10m", `trap 'echo went on' CONT; trap 'exit 5' TERM; echo $$; while :; do sleep 0.05; done`, "-q")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	d, out := s.firstLine(cmd)
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	must.Succeed(t, err)
	d.Signal(syscall.SIGTSTP)
	await.Stopped(t, pid)
	d.Signal(syscall.SIGCONT)
	await.Eventually(t, "CMD goes on", func() bool { return strings.Contains(out.String(), "went on") })
	d.Signal(syscall.SIGTERM)
	if code := d.Code(); code != 5 {
		t.Errorf("exit code %d\n%s", code, d.Log)
	}
}
