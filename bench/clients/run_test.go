package clients

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
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
	daemon := os.Getenv("KAZAHANAD")
	if daemon == "" {
		daemon = filepath.Join(t.TempDir(), "kazahanad")
		if out, err := exec.Command("go", "build", "-tags", "grpcnotrace,nopgxregisterdefaulttypes", "-o", daemon, "./cmd/kazahanad").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	s := newSuite()
	r, err := s.Parse([]string{"-rounds", "1", "-duration", "10ms", "-core", "-1", "-daemon", daemon}, io.Discard)
	must.Succeed(t, err)
	var out strings.Builder
	must.Succeed(t, s.Run(t.Context(), r, &out, io.Discard))
	for _, v := range r.Verdicts() { // the programs give the rows that the aims are about
		if v.Why != "" {
			t.Errorf("%s, %s: %v", v.Target.Work, v.Target.Criterion, v)
		}
	}
	for _, want := range []string{inPython, inNode, inGo, inJava, "batch of 100", "pipelined", "not pinned"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
