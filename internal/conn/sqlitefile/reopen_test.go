package sqlitefile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// The only process that has the file removes its index when it closes the session: after it has
// opened another, its handle is of the new index. Another handle of that file, when it is
// closed, would give up the locks of this process.
func TestIndexAfterReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.db")
	f := openAt(t, path, Options{})
	add(t, f, "x")
	done := make(chan error, 1)
	f.tasks <- func() { done <- f.reopen(t.Context()) }
	must.Succeed(t, <-done)
	info, err := os.Stat(path + "-shm")
	must.Succeed(t, err)
	held, err := f.index.Stat()
	if err != nil || !os.SameFile(held, info) {
		t.Errorf("the index is another file than %v: %v", info, err)
	}
	mustWrite(t, f, "INSERT INTO b VALUES ('y')")
}
