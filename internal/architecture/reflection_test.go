package architecture

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// mostBytes is the size that the shipped daemon does not reach on amd64: docs/decisions.md says what it is made of.
const mostBytes = 34_000_000

// Where reachable code asks package reflect for a method by a name that is not constant, the
// linker keeps every exported method of every type: the daemon is then a third larger.
func TestNoMethodIsCalledByItsName(t *testing.T) {
	ring.All(t)
	ring.WithoutRace(t)
	binary := filepath.Join(t.TempDir(), "kazahanad")
	link := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace,nopgxregisterdefaulttypes", "-ldflags=-s -w -dumpdep", "-o", binary, "./cmd/kazahanad")
	link.Dir, link.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	edges, err := link.StderrPipe()
	must.Succeed(t, err)
	must.Succeed(t, link.Start())
	culprits, seen, last := map[string]bool{}, 0, ""
	lines := bufio.NewScanner(edges)
	lines.Buffer(nil, 1<<20)
	for ; lines.Scan(); last = lines.Text() {
		from, to, is := strings.Cut(lines.Text(), " -> ")
		if !is {
			continue
		}
		seen++
		for _, name := range []string{from, to} {
			if strings.Contains(name, "<ReflectMethod>") {
				culprits[name] = true
			}
		}
	}
	must.Succeed(t, lines.Err())
	if err := link.Wait(); err != nil || seen == 0 {
		t.Fatalf("go build: %v, %d edges: %s", err, seen, last)
	}
	for name := range culprits {
		t.Errorf("%s can call any method", name)
	}
	info, err := os.Stat(binary)
	must.Succeed(t, err)
	if size := info.Size(); runtime.GOARCH == "amd64" && size >= mostBytes {
		t.Errorf("the daemon has %d bytes, want less than %d", size, mostBytes)
	}
}
