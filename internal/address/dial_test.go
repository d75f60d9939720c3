package address

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// The error of a failed connection says what to do.
func TestDialExplains(t *testing.T) {
	dir := ring.Dir(t)
	missing, file, socket := filepath.Join(dir, "no"), filepath.Join(dir, "file"), filepath.Join(dir, "s")
	must.Succeed(t, os.WriteFile(file, nil, fs.FileMode(0o600)))
	listen(t, socket)
	for path, want := range map[string]string{
		missing: "kazahanad serve --socket " + missing, file: "it is not a socket",
	} {
		_, err := Dial(t.Context(), path)
		wantError(t, err, path, want)
	}
	t.Setenv("KAZAHANA_SOCKET", socket)
	conn, err := Dial(t.Context(), "")
	must.Succeed(t, err)
	_ = conn.Close()
}
