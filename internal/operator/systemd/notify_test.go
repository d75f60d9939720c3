package systemd

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A manager that does not read loses messages, and holds up nothing.
func TestNotifyWithoutAReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	const many = 10_000 // more than any kernel keeps for a reader
	for n := range many {
		heard, err := Notify(alive)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if !heard || err != nil {
			t.Fatalf("message %d: %v, %v", n, heard, err)
		}
	}
	t.Errorf("%d messages were sent, and nothing was read", many)
}
