package leaseserver

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/record/memory"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// The walk through locks and sequences in docs/lease-server.md, run as it stands
// there.
func TestLocksWalk(t *testing.T) {
	ring.All(t)
	for _, tool := range []string{"sh", "curl", "node"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	page, err := os.ReadFile("../../docs/lease-server.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "## Locks and sequences\n")
	section, _, ended := strings.Cut(section, "\n## ")
	if !found || !ended {
		t.Fatal("the page has no such section")
	}
	blocks := func(kind string) (all []string) {
		for _, m := range regexp.MustCompile("(?s)```"+kind+"\n(.*?)```").FindAllStringSubmatch(section, -1) {
			all = append(all, m[1])
		}
		return all
	}
	script, said, shown := blocks("sh"), blocks("text"), blocks("json")
	if len(script) != 4 || len(said) != 1 || len(shown) != 1 {
		t.Fatalf("%d blocks of commands, %d of output, %d of JSON", len(script), len(said), len(shown))
	}
	g := newRig(t, func(g *rig) { g.keep(lock.OnRecords(memory.New(g.clock.Load))) })
	address := g.listening(Listening{})
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", strings.Join(script, "\n"))
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "SERVER=http://"+address)
	out, err := cmd.CombinedOutput()
	first, rest, _ := strings.Cut(string(out), "\n")
	if err != nil || rest != said[0] {
		t.Errorf("%v: it said\n%s\nthe page has\n%s", err, rest, said[0])
	}
	names := regexp.MustCompile(`"(\w+)":`)
	if got, want := names.FindAllString(first, -1), names.FindAllString(shown[0], -1); !slices.Equal(got, want) {
		t.Errorf("the server sends %v, and the page shows %v", got, want)
	}
}
