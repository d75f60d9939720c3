//go:build linux

package systemd_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A reload checks the file, then signals, and ends as the check did. A mistake does not
// keep the signal back: the daemon refuses the file itself, which its metrics show.
func TestReloadChecksFirst(t *testing.T) {
	// A shell cannot trap a signal that it was told to ignore, as nohup does.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for unit, checks := range map[string]string{service: "serve --check", server: "lease-server --check"} {
		for _, code := range []int{0, 2} {
			b, err := os.ReadFile(unit)
			must.Succeed(t, err)
			lines := regexp.MustCompile(`(?m)^ExecReload=/bin/true\nExecReload=/bin/sh -c '(.*)'$`).FindAllStringSubmatch(string(b), -1)
			if len(lines) != 1 || strings.Count(string(b), "\nExecReload=") != 2 {
				t.Fatalf("%s has other lines ExecReload= than those that are known", unit)
			}
			said := filepath.Join(t.TempDir(), "said")
			program := filepath.Join(t.TempDir(), "kazahanad")
			must.Succeed(t, os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\necho \"$@\" >>%s\nexit %d\n", said, code), 0o755))
			main := exec.Command("/bin/sh", "-c", `trap 'echo signalled >>"$0"; exit 0' HUP; echo ready; while :; do sleep 0.1; done`, said)
			out, err := main.StdoutPipe()
			must.Succeed(t, err)
			must.Succeed(t, main.Start())
			t.Cleanup(func() { _ = main.Process.Kill() })
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatalf("%q, %v", line, err)
			}
			script := strings.ReplaceAll(strings.ReplaceAll(lines[0][1], "$$", "$"), "/usr/bin/kazahanad", program)
			reload := exec.Command("/bin/sh", "-c", script)
			reload.Env = append(os.Environ(), fmt.Sprintf("MAINPID=%d", main.Process.Pid))
			var exit *exec.ExitError
			if err := reload.Run(); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := reload.ProcessState.ExitCode(); got != code {
				t.Errorf("%s: a check that ends with %d ends the reload with %d", unit, code, got)
			}
			if err := main.Wait(); err != nil {
				t.Errorf("%s: no signal: %v", unit, err)
			}
			if text, _ := os.ReadFile(said); string(text) != checks+"\nsignalled\n" {
				t.Errorf("%s: %q", unit, text)
			}
		}
	}
}
