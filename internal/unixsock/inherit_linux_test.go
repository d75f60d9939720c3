package unixsock

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// No client finds a socket without a file.
func TestInheritRefusesAbstractSockets(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@kazahana-test-%d", os.Getpid())})
	must.Succeed(t, err)
	defer l.Close()
	if _, err := Inherit(given(t, l)); err == nil || !strings.Contains(err.Error(), "path of a file") {
		t.Errorf("got %v", err)
	}
}
