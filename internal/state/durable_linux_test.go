package state

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// TestReplacedFileIsOnTheDisk: when Replace returns, no page of the new file waits in
// memory to be written. A power failure would then leave a name without content.
func TestReplacedFileIsOnTheDisk(t *testing.T) {
	path := t.TempDir()
	d, err := openDir(path, false, "")
	must.Succeed(t, err)
	defer d.Close()
	// The file is large, so that no kernel has written it by chance.
	content := make([]byte, 1<<20)
	must.Succeed(t, d.Replace("file", content))
	f, err := os.Open(filepath.Join(path, "file"))
	must.Succeed(t, err)
	defer f.Close()
	var pages unix.Cachestat_t
	err = unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &pages, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the kernel does not tell which pages are dirty")
	}
	must.Succeed(t, err)
	if pages.Dirty+pages.Writeback > 0 {
		t.Errorf("%d pages wait to be written, %d are being written", pages.Dirty, pages.Writeback)
	}
}
