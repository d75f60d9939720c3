//go:build linux

package ids

import (
	"context"
	"os/exec"
	"path/filepath"

	"github.com/kazahana/kazahana/internal/load"
)

func startKatsubushi(ctx context.Context, b *bench) (*server, error) {
	path, err := exec.LookPath("katsubushi")
	if err != nil {
		return nil, absence{"katsubushi is not on the PATH: put there a binary of github.com/kayac/go-katsubushi/releases (there is no Debian package)"}
	}
	socket := filepath.Join(b.dir, "katsubushi.sock")
	s := &server{name: katsubushi, dialect: load.Memcached, socket: func(workload) string { return socket }, doors: map[string]string{load.Memcached: socket},
		note: "katsubushi: memcached's text protocol; NextIDs(n) is one GET with n keys; it makes at most 4,096 IDs in a millisecond",
	}
	return b.startReference(ctx, s, []string{socket}, path, "-worker-id", "1", "-sock", socket)
}
