package leaseserver

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
)

// A client that was written from the design alone works.
func TestSeedClient(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	g := newRig(t, func(g *rig) {
		p, err := providertest.OverMemory(memory.New(nil), g.services) // by the clock that the client has, too
		if err != nil {
			t.Fatal(err)
		}
		g.options.Provider = p
	})
	address := g.listening(Listening{})
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	out, err := exec.CommandContext(ctx, node, "testdata/seed-client.mjs", "http://"+address).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "ok" { // seeds 000-4.1-1, 000-4.1-2, 000-4.2-1 and 000-7.1-1
		t.Errorf("%v: %s", err, out)
	}
}
