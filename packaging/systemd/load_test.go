//go:build linux

package systemd_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A program that asks for IDs with one of the clients.
type program struct {
	client  string
	missing string   // why it cannot run here; "" = it can
	args    []string // on the host
}

// programs puts the clients on the stage.
func programs(t *testing.T, root string) []program {
	t.Helper()
	const dir = "/opt/load"
	into := filepath.Join(root, dir)
	copyAll := func(src, name string) error {
		if err := os.MkdirAll(into, 0o755); err != nil {
			return err
		}
		return exec.Command("cp", "-rL", src, filepath.Join(into, name)).Run()
	}
	must.Succeed(t, os.MkdirAll(into, 0o755))
	build := exec.Command("go", "build", "-C", "../../clients/go/programs", "-o", filepath.Join(into, "load"), "./load")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all := []program{{client: "Go", args: []string{dir + "/load"}}}

	python := program{client: "Python", args: []string{"env", "PYTHONPATH=" + dir + "/python", "PYTHONDONTWRITEBYTECODE=1", "python3", dir + "/load.py"}}
	library, err := exec.Command("python3", "-c", `import sys; print("../../.tools/python-client/venv-%d.%d/lib/python%d.%d/site-packages/msgpack" % (sys.version_info[:2] * 2))`).Output()
	if err != nil {
		python.missing = "there is no Python 3"
	} else if copyAll("../../clients/python/src", "python") != nil || copyAll(strings.TrimSpace(string(library)), "python/msgpack") != nil {
		python.missing = "the client's libraries are not there: clients/python/scripts/test installs them"
	} else if err := copyAll("testdata/load.py", "load.py"); err != nil {
		t.Fatal(err)
	}

	node := program{client: "Node", args: []string{"node", dir + "/load.mjs"}}
	if _, err := exec.LookPath("node"); err != nil {
		node.missing = "there is no Node"
	} else if copyAll("../../clients/node/dist", "dist") != nil || copyAll("../../clients/node/package.json", "package.json") != nil {
		node.missing = "the client is not built: clients/node/scripts/test build does"
	} else if err := copyAll("testdata/load.mjs", "load.mjs"); err != nil {
		t.Fatal(err)
	}
	return append(all, python, node)
}

// restarts are how often the daemon is restarted under load.
const restarts = 4

// restartUnderLoad: programs that ask all the time see no error while the daemon
// is restarted, and IDs that ascend.
func restartUnderLoad(h *host, all []program) {
	const end = "/run/end-of-load"
	h.fresh()
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*patience)
	defer cancel()
	running := map[string]*asking{}
	for _, p := range all {
		if p.missing == "" {
			running[p.client] = h.begin(ctx, append([]string{"runuser", "-u", "app", "--"}, append(p.args, end)...))
		}
	}
	for range restarts {
		h.awaitIDs(running)
		h.do("systemctl", "restart", service)
	}
	h.awaitIDs(running)
	h.do("touch", end)
	for _, p := range all {
		h.t.Run(p.client, func(t *testing.T) {
			if p.missing != "" {
				t.Skip(p.missing)
			}
			err := running[p.client].cmd.Wait()
			said := strings.TrimLeft(running[p.client].String(), ".")
			if err != nil {
				t.Fatalf("%v: %s\n%s", err, said, h.journal())
			}
			var count, longest int
			if _, err := fmt.Sscan(said, &count, &longest); err != nil {
				t.Errorf("it says %q", said)
			}
			t.Logf("%d IDs over %d restarts, the longest pause %d ms", count, restarts, longest)
		})
	}
}

// asking is a program that was started, and what it has said.
type asking struct {
	cmd  *exec.Cmd
	mu   sync.Mutex // guards said
	said bytes.Buffer
}

// Write implements io.Writer.
func (a *asking) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.said.Write(p)
}

func (a *asking) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.said.String()
}

func (h *host) begin(ctx context.Context, args []string) *asking {
	h.t.Helper()
	a := &asking{cmd: h.command(ctx, args...)}
	a.cmd.Stdout, a.cmd.Stderr = a, a
	must.Succeed(h.t, a.cmd.Start())
	return a
}

// awaitIDs waits until each program has had 100 IDs more, all of them from now on.
func (h *host) awaitIDs(running map[string]*asking) {
	h.t.Helper()
	for client, a := range running {
		before := len(a.String())
		h.eventually(client+" goes on", func() bool { return len(a.String()) >= before+2 })
	}
}
