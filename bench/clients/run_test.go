//go:build linux

package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/bench/suite"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// The programs of all languages give the rows that the aims are about.
func TestRun(t *testing.T) {
	ring.Deep(t)
	for _, program := range []string{"python3", "node", "npm", "java", "mvn"} {
		ring.Program(t, program)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.Chdir("../..")
	p := suite.Plan{Rounds: 1, Duration: 10 * time.Millisecond, Core: -1, Daemon: os.Getenv("KAZAHANAD")}
	if p.Daemon == "" {
		p.Daemon = filepath.Join(t.TempDir(), "kazahanad")
		if out, err := exec.Command("go", "build", "-o", p.Daemon, "./cmd/kazahanad").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	var out strings.Builder
	if err := run(t.Context(), p, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{inPython, inNode, inGo, inJava, "batch of 100", "pipelined", "not pinned"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
