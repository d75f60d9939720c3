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

// load is a program on the host that asks for IDs until a file is there.
const load = "/opt/load"

// buildLoad puts the program on the stage.
func buildLoad(t *testing.T, root string) {
	t.Helper()
	build := exec.Command("go", "build", "-C", "../../clients/go/programs", "-o", filepath.Join(root, load), "./load")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// restarts are how often the daemon is restarted under load.
const restarts = 4

// restartUnderLoad: a program that asks all the time sees no error while the daemon is
// restarted, and IDs that ascend. TestStorm kills a daemon under every client.
func restartUnderLoad(h *host) {
	const end = "/run/end-of-load"
	h.fresh()
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*patience)
	defer cancel()
	a := &asking{cmd: h.command(ctx, "runuser", "-u", "app", "--", load, end)}
	a.cmd.Stdout, a.cmd.Stderr = a, a
	must.Succeed(h.t, a.cmd.Start())
	for range restarts {
		h.awaitIDs(a)
		h.do("systemctl", "restart", service)
	}
	h.awaitIDs(a)
	h.do("touch", end)
	err := a.cmd.Wait()
	said := strings.TrimLeft(a.String(), ".")
	if err != nil {
		h.t.Fatalf("%v: %s\n%s", err, said, h.journal())
	}
	var count, longest int
	if _, err := fmt.Sscan(said, &count, &longest); err != nil {
		h.t.Errorf("it says %q", said)
	}
	h.t.Logf("%d IDs over %d restarts, the longest pause %d ms", count, restarts, longest)
}

// asking is a program that was started, and its output.
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

// awaitIDs waits until the program has had 100 IDs more, all of them from now on.
func (h *host) awaitIDs(a *asking) {
	h.t.Helper()
	before := len(a.String())
	h.eventually("it goes on", func() bool { return len(a.String()) >= before+2 })
}
