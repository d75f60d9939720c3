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
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

// With loadEnv set the test binary is a program of the Go client: it asks for IDs
// until the file of that name is there.
const loadEnv = "KZTEST_LOAD"

func TestMain(m *testing.M) {
	if end := os.Getenv(loadEnv); end != "" {
		if err := load(end); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// load says a dot for every 100 IDs, then how many there were, and the longest pause
// in ms.
func load(end string) error {
	client, err := kazahana.New(kazahana.WithTimeout(patience))
	if err != nil {
		return err
	}
	defer client.Close()
	count, last, longest := 0, kazahana.ID(0), time.Duration(0)
	for {
		if _, err := os.Stat(end); err == nil {
			fmt.Println(count, longest.Milliseconds())
			return nil
		}
		began := time.Now()
		id, err := client.NextID(context.Background())
		if err != nil {
			return err
		}
		if id <= last {
			return fmt.Errorf("%d after %d", id, last)
		}
		count, last, longest = count+1, id, max(longest, time.Since(began))
		if count%100 == 0 {
			fmt.Print(".")
		}
	}
}

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
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := copyAll(self, "load"); err != nil {
		t.Fatal(err)
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
			running[p.client] = h.begin(ctx, append([]string{"runuser", "-u", "app", "--", "env", loadEnv + "=" + end}, append(p.args, end)...))
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
	if err := a.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
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
