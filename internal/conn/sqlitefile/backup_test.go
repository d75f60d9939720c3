package sqlitefile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	tests "github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestBackup(t *testing.T) {
	live := disktest.Memory(t)
	path := newPath(t)
	f := openAt(t, path, inLive(live))
	add(t, f, "x")
	to := filepath.Join(t.TempDir(), "backup.db")
	must.Succeed(t, f.Backup(t.Context(), to))
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup: %v, %v", info, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(to)); err != nil || len(entries) != 1 {
		t.Errorf("there is %v beside it (%v)", entries, err)
	}
	if err := f.Backup(t.Context(), to); !errors.Is(err, os.ErrExist) || !strings.Contains(err.Error(), "overwrites nothing") {
		t.Errorf("a second one: %v", err)
	}
	if err := f.Backup(t.Context(), filepath.Join(to, "x")); err == nil {
		t.Error("a backup below a file was made")
	}
	mustNotBeFenced(t, f)
	mustClose(t, f)
	// Put back, it is fenced, and has its rows.
	disktest.Run(t, "mv", to, path)
	f = openAt(t, path, inLive(live))
	mustBeFenced(t, f, reasonCopy)
	if got := readText(t, f, "SELECT text FROM a"); got != "x" {
		t.Errorf("it has %q", got)
	}
}

// Operations go on between the steps of a backup, and it is of one time. Where another process
// writes all the time, it ends too.
func TestBackupOfAFileInUse(t *testing.T) {
	for name, kind := range map[string]*Kind{"shared": &diskKind, "owned": &ownedKind} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			f := openOf(t, kind, path, Options{})
			for range 40 { // many steps
				mustWrite(t, f, "INSERT INTO a VALUES (hex(zeroblob(100000)))")
			}
			writers := []*File{f}
			if !kind.Owned {
				writers = append(writers, openOf(t, kind, path, Options{}))
			}
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for _, w := range writers {
				all.Go(func() {
					for ctx.Err() == nil {
						if err := write(w, "INSERT INTO b VALUES ('x')"); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			to := filepath.Join(t.TempDir(), "backup")
			err := f.Backup(t.Context(), to)
			stop()
			all.Wait()
			must.Succeed(t, err)
			copied := openOf(t, kind, to, Options{TermMS: term})
			mustBeFenced(t, copied, reasonCopy)
			counted(t, copied)
			if got := readText(t, copied, "SELECT count(*) FROM a"); got != "40" {
				t.Errorf("the copy has %s rows", got)
			}
		})
	}
}

// A backup is over if its caller leaves while it begins: the next one can begin.
func TestBackupThatIsGivenUp(t *testing.T) {
	path, fencing := newPath(t), func() {}
	f := openAt(t, path, Options{At: func(string) error { fencing(); return nil }})
	add(t, f, "x")
	// The session is opened anew, and finds an older file.
	_, err := inWorker(t.Context(), f, func() (struct{}, error) { return struct{}{}, f.closeSession() })
	must.Succeed(t, err)
	s, err := Connect(t.Context(), path)
	must.Succeed(t, err)
	must.Succeed(t, errors.Join(s.ExecOnce("UPDATE life SET commits = 0"), s.Close()))
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	fencing = func() {
		fencing = func() {}
		leave()
		<-gone
	}
	if err := f.Backup(ctx, filepath.Join(t.TempDir(), "backup")); !errors.Is(err, context.Canceled) {
		t.Errorf("the backup: %v", err)
	}
	close(gone)
	to := filepath.Join(t.TempDir(), "backup")
	tests.Success(t, "the next backup", func() error { return f.Backup(t.Context(), to) })
}
