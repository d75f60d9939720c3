package state

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"go.uber.org/zap"
)

// A daemon in a container of its own has the number 1 there, which is alive
// everywhere.
func TestLockedFromAnotherContainer(t *testing.T) {
	ring.All(t)
	if os.Geteuid() != 0 {
		t.Skip("only root makes a namespace of processes")
	}
	p, _ := usedPlace(t)
	path, err := os.Executable()
	must.Succeed(t, err)
	holder := startCommand(t, "hold", p, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, path)
	if line, _ := holder.stdout.ReadString('\n'); line != "ready\n" {
		t.Skip("a namespace of processes cannot be made here")
	}
	var locked *LockedError
	if _, err := p.open(); !errors.As(err, &locked) || locked.PID != 1 || !strings.Contains(err.Error(), "if it runs in a container, that is its number there") {
		t.Errorf("Open: %v", err)
	}
	q := place{copyDir(t, p.dir), p.live}
	mustOpen(t, q).wantSaid(zap.WarnLevel, "is a copy of one that a running daemon uses")
	holder.kill(t)
}
