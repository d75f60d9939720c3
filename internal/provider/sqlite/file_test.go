package sqlite

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// madeFile is a healthy file with some grants, that nobody has open.
func madeFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leases.db")
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	for range 3 {
		if _, err := p.Acquire(context.Background(), provider.AcquireRequest{ThroughputPerMS: 256 * 100}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// execute runs statements on a file that nobody has open.
func execute(t *testing.T, path string, statements ...string) {
	t.Helper()
	s, err := sqlitefile.Connect(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, q := range statements {
		if err := s.ExecOnce(q); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	write := func(data []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	overwrite := func(offset, length int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte(strings.Repeat("\xa5", int(length))), offset); err != nil {
				t.Fatal(err)
			}
		}
	}
	sql := func(statements ...string) func(*testing.T, string) {
		return func(t *testing.T, path string) { execute(t, path, statements...) }
	}
	truncate := func(size int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		harm func(*testing.T, string)
		want string
	}{
		"text":                  {write([]byte(strings.Repeat("not a database\n", 1000))), "not an SQLite database"},
		"short text":            {write([]byte("hello\n")), "not an SQLite database"},
		"empty":                 {truncate(0), "it is empty"},
		"cut to one page":       {truncate(4096), "damaged"},
		"cut to half a page":    {truncate(2048), "damaged"},
		"cut in the middle":     {truncate(9 * 4096), "damaged"},
		"zeroed header":         {overwrite(0, 100), "not an SQLite database"},
		"damaged schema page":   {overwrite(100, 3000), "damaged"},
		"newer schema":          {sql("PRAGMA user_version=2"), "it was written by a newer kazahanad (schema 2, this one knows up to 1): upgrade this one"},
		"no schema version":     {sql("PRAGMA user_version=0"), "schema version is 0"},
		"another program's":     {sql("PRAGMA application_id=252006674"), "another program"},
		"another program's, 0":  {sql("PRAGMA application_id=0"), "another program"},
		"tables are missing":    {sql("DROP TABLE slot"), "no such table"},
		"another pool timeline": {sql("UPDATE pool SET bit_ts = 40"), "bit_ts 40"},
	} {
		t.Run(name, func(t *testing.T) {
			path := madeFile(t)
			test.harm(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			p, err := Open(context.Background(), Config{Path: path, Services: defaultServices()})
			if err == nil {
				p.Close()
				t.Fatal("it was opened")
			}
			t.Log(err)
			if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("the error is %q, want one with %q and the path", err, test.want)
			}
			if after, err := os.ReadFile(path); err != nil || string(before) != string(after) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
}

func TestPathsThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir:                            "it is a directory",
		filepath.Join(dir, "dangling"): "symbolic link",
		filepath.Join(dir, "fifo"):     "no regular file",
		filepath.Join(file, "x.db"):    "not a directory",
		"/dev/null":                    "no regular file",
		"/proc/leases.db":              "cannot be created",
	} {
		p, err := Open(context.Background(), Config{Path: path, Services: defaultServices()})
		if err == nil {
			p.Close()
			t.Errorf("%s was opened", path)
			continue
		}
		t.Log(err)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %q, want one with %q", path, err, want)
		}
	}
}

func TestCreatedModes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "dir", "leases.db")
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{
		filepath.Join(dir, "new"): 0o700 | os.ModeDir, filepath.Dir(path): 0o700 | os.ModeDir,
		path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600,
	} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
}

// A name with everything that means something in a URI.
func TestStrangePath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a ?mode=ro&#%41;'\"日本.db")
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestFileGoneOrReplaced(t *testing.T) {
	remove := func(t *testing.T, names ...string) {
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, harm := range map[string]func(t *testing.T, path string){
		"deleted":     func(t *testing.T, path string) { remove(t, path) },
		"log deleted": func(t *testing.T, path string) { remove(t, path+"-wal") },
		"all deleted": func(t *testing.T, path string) { remove(t, path, path+"-wal", path+"-shm") },
		"renamed": func(t *testing.T, path string) {
			if err := os.Rename(path, path+".old"); err != nil {
				t.Fatal(err)
			}
		},
		"replaced": func(t *testing.T, path string) {
			if err := os.Rename(madeFile(t), path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "leases.db")
			p := mustOpen(t, Config{Path: path, Services: defaultServices()})
			l, err := p.Acquire(context.Background(), provider.AcquireRequest{})
			if err != nil {
				t.Fatal(err)
			}
			harm(t, path)
			if got, err := p.Acquire(context.Background(), provider.AcquireRequest{}); !errors.Is(err, sqlitefile.ErrMoved) {
				t.Errorf("Acquire gave %v and the error %v, want sqlitefile.ErrMoved", got, err)
			}
			if _, err := provider.Verify(context.Background(), p, "", l); !errors.Is(err, sqlitefile.ErrMoved) {
				t.Errorf("Verify: the error is %v, want sqlitefile.ErrMoved", err)
			}
			at := time.Now().UnixMilli()
			err = p.Release(context.Background(), provider.ReleaseRequest{
				ID: l[0].ID, BitSeq: 8, TimestampMS: at, Signature: lease.Sign(l[0].Secret, l[0].ID, at),
			})
			if !errors.Is(err, sqlitefile.ErrMoved) {
				t.Errorf("Release: the error is %v, want sqlitefile.ErrMoved", err)
			}
		})
	}
}

// The file goes away after everything was checked, right before the commit.
func TestFileGoneBeforeCommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	p.at = func(step string) error {
		if step == sqlitefile.StepWritten {
			return os.Rename(path, path+".old")
		}
		return nil
	}
	if got, err := p.Acquire(context.Background(), provider.AcquireRequest{}); !errors.Is(err, sqlitefile.ErrMoved) || got != nil {
		t.Fatalf("Acquire gave %v and the error %v, want sqlitefile.ErrMoved", got, err)
	}
}

// Put back in its place, the file is the one that was opened.
func TestFilePutBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	for _, move := range [][2]string{{path, path + ".old"}, {path + ".old", path}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Error(err)
	}
}

// Closing a provider whose file was replaced leaves alone the log that belongs
// to the new file, though it has the name of the old one's. That is SQLite's
// doing; it is tested because grants would be lost without it.
func TestCloseAfterReplacement(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	old := mustOpen(t, Config{Path: path, Services: defaultServices()})
	if _, err := old.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(path+suffix, path+".old"+suffix); err != nil {
			t.Fatal(err)
		}
	}
	fresh := mustOpen(t, Config{Path: path, Services: defaultServices()})
	if _, err := fresh.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Errorf("the new file's provider: %v", err)
	}
}

// A symbolic link to the file, and one that is made to point elsewhere.
func TestSymbolicLink(t *testing.T) {
	target, other := madeFile(t), madeFile(t)
	link := filepath.Join(t.TempDir(), "leases.db")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	p := mustOpen(t, Config{Path: link, Services: defaultServices()})
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); !errors.Is(err, sqlitefile.ErrMoved) {
		t.Errorf("the error is %v, want sqlitefile.ErrMoved", err)
	}
}

// lockFile holds the file's write lock as another process would, until the test
// ends.
func lockFile(t *testing.T, path string) (unlock func()) {
	t.Helper()
	s, err := sqlitefile.Connect(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ExecOnce("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(s.ExecOnce("ROLLBACK"), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestLockedByAnotherProcess(t *testing.T) {
	path := madeFile(t)
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	unlock := lockFile(t, path)

	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := p.Acquire(ctx, provider.AcquireRequest{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), path) {
		t.Errorf("Acquire: the error is %v, want DeadlineExceeded and the path", err)
	}
	if _, err := p.List(context.Background(), ""); err != nil {
		t.Errorf("reading needs no lock: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := p.Acquire(context.Background(), provider.AcquireRequest{})
		done <- err
	}()
	unlock()
	if err := <-done; err != nil {
		t.Errorf("Acquire after the lock was given up: %v", err)
	}
}

func TestCloseWhileWaiting(t *testing.T) {
	path := madeFile(t)
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	defer lockFile(t, path)()
	begun := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		close(begun)
		_, err := p.Acquire(context.Background(), provider.AcquireRequest{})
		done <- err
	}()
	<-begun
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, sqlitefile.ErrClosed) {
		t.Errorf("Acquire: the error is %v, want sqlitefile.ErrClosed", err)
	}
}

// A caller goes its way although the worker hangs, as in fsync on a dead disk.
func TestHangingDisk(t *testing.T) {
	p := mustOpen(t, Config{Path: madeFile(t), Services: defaultServices()})
	hang := make(chan struct{})
	p.at = func(step string) error {
		if step == sqlitefile.StepCommitted {
			<-hang
		}
		return nil
	}
	req := provider.AcquireRequest{RequestID: provider.NewSecret()}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := p.Acquire(ctx, req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v, want DeadlineExceeded", err)
	}
	close(hang)
	// The grant was made, and the request repeated gets it.
	if _, err := p.Acquire(context.Background(), req); err != nil {
		t.Error(err)
	}
	records, err := p.List(context.Background(), "")
	if err != nil || len(records) != 301 {
		t.Errorf("%d records (%v), want the file's 300 and one more", len(records), err)
	}
}

// A caller that has gone before the commit leaves no grant behind.
func TestCallerGoneBeforeCommit(t *testing.T) {
	p := mustOpen(t, Config{Path: madeFile(t), Services: defaultServices()})
	ctx, cancel := context.WithCancel(context.Background())
	p.at = func(step string) error {
		if step == sqlitefile.StepWritten {
			cancel()
		}
		return nil
	}
	if _, err := p.Acquire(ctx, provider.AcquireRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want Canceled", err)
	}
	records, err := p.List(context.Background(), "")
	if err != nil || len(records) != 300 {
		t.Errorf("%d records (%v), want the file's 300 and no more", len(records), err)
	}
}

// fillUp acquires until the store cannot take any more.
func fillUp(p *Provider) error {
	for range 10_000 {
		if _, err := p.Acquire(context.Background(), provider.AcquireRequest{
			ThroughputPerMS: 256 * 20, Meta: map[string]string{"padding": strings.Repeat("x", 2000)},
		}); err != nil {
			return err
		}
	}
	return errors.New("it never became full")
}

func TestDatabaseFull(t *testing.T) {
	path := madeFile(t)
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	limit := func(pages string) {
		t.Helper()
		if _, err := sqlitefile.Read(context.Background(), p.file, func(s *sqlitefile.Session) (struct{}, error) {
			return struct{}{}, s.ExecOnce("PRAGMA max_page_count=" + pages)
		}); err != nil {
			t.Fatal(err)
		}
	}
	limit("120")
	err := fillUp(p)
	t.Log(err)
	if err == nil || !strings.Contains(err.Error(), "the disk is full") || !strings.Contains(err.Error(), path) {
		t.Errorf("the error is %v, want one that says so", err)
	}
	limit("1000000")
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Errorf("with space again: %v", err)
	}
	if err := checkIndex(p); err != nil {
		t.Error(err)
	}
}

// mountTmpfs mounts a file system of its own, where that is permitted.
func mountTmpfs(t *testing.T, size string) (dir string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("tmpfs is Linux's")
	}
	dir = t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "kazahana-test", dir).CombinedOutput(); err != nil {
		t.Skipf("mounting is not permitted: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

func TestDiskFull(t *testing.T) {
	dir := mountTmpfs(t, "2m")
	path := filepath.Join(dir, "leases.db")
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	defer p.Close() // before the file system goes
	err := fillUp(p)
	t.Log(err)
	if err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("the error is %v, want one that says so", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Errorf("with space again: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	checkIntegrity(t, path)
}

func TestCreateOnFullDisk(t *testing.T) {
	dir := mountTmpfs(t, "64k")
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 52<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Open(context.Background(), Config{Path: filepath.Join(dir, "leases.db"), Services: defaultServices()})
	if err == nil {
		p.Close()
		t.Fatal("it was created")
	}
	t.Log(err)
	entries, readErr := os.ReadDir(dir)
	if readErr != nil || len(entries) != 1 {
		t.Errorf("left behind: %v (%v)", entries, readErr)
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	dir := mountTmpfs(t, "2m")
	path := filepath.Join(dir, "leases.db")
	if err := mustOpen(t, Config{Path: path, Services: defaultServices()}).Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-o", "remount,ro", dir).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v: %s", err, out)
	}
	for name, want := range map[string]string{"leases.db": "read-only", "new.db": "read-only"} {
		p, err := Open(context.Background(), Config{Path: filepath.Join(dir, name), Services: defaultServices()})
		if err == nil {
			p.Close()
			t.Errorf("%s was opened", name)
			continue
		}
		t.Log(err)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want one with %q", name, err, want)
		}
	}
}

// TestPermissions opens files as a user who may not, in a process of its own.
func TestPermissions(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir, err := os.MkdirTemp("", "kazahana-test-") // others may enter it, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "child")
	writable := filepath.Join(dir, "writable")
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.WriteFile(exe, data, 0o755), os.Mkdir(writable, 0o777), os.Chmod(writable, 0o777),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	made := func(path string, mode os.FileMode) string {
		if err := errors.Join(mustOpen(t, Config{Path: path, Services: defaultServices()}).Close(), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct{ path, want string }{
		"may not read":          {made(filepath.Join(dir, "secret.db"), 0o600), "permission"},
		"may not write":         {made(filepath.Join(writable, "readable.db"), 0o644), "permission denied"},
		"directory not for all": {made(filepath.Join(dir, "file.db"), 0o666), "may not write to its directory"},
		"may not create":        {filepath.Join(dir, "new.db"), "permission denied"},
		"may not create parent": {filepath.Join(dir, "new", "new.db"), "permission denied"},
		"may do everything":     {filepath.Join(writable, "new.db"), ""},
	} {
		cmd := child(t, "open", childArgs{Path: test.path, Services: defaultServices()})
		cmd.Path, cmd.Dir = exe, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		t.Logf("%s: %s", name, out)
		if (err == nil) != (test.want == "") || !strings.Contains(string(out), test.want) {
			t.Errorf("%s: %v: %s: want %q", name, err, out, test.want)
		}
	}
}

func TestFromURL(t *testing.T) {
	dir := t.TempDir()
	for raw, want := range map[string]string{
		"sqlite:" + dir + "/a.db":                      "",
		"sqlite://" + dir + "/a.db":                    "",
		"sqlite:" + dir + "/b%20c.db?pool=x&ids=10-20": "",
		"sqlite:":                         "needs the path",
		"sqlite:?term=5m":                 "needs the path",
		"sqlite:leases.db":                "write sqlite:/",
		"sqlite:a%2Fb.db":                 "a/b.db is a relative path",
		"sqlite://leases.db":              "leases.db is a relative path",
		"sqlite://x/leases.db":            "x/leases.db is a relative path",
		"sqlite:" + dir + "/a.db?mode=ro": `"mode" that is not known here: allowed are term, quarantine`,
		"sqlite:" + dir + "/a.db?term=5":  "term=5",
		"sqlite:" + dir + "/a.db?epoch=2025-01-01T00:00:00Z": "",
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := ParseURL(u, nil, nil)
		var p *Provider
		if err == nil {
			p, err = Open(context.Background(), cfg)
		}
		if err == nil {
			_, err = p.Acquire(context.Background(), provider.AcquireRequest{})
			p.Close()
			os.Remove(p.path) // the next one may have another epoch
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: the error is %v, want %q", raw, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "b%20c.db")); err == nil {
		t.Error("the path was not unescaped")
	}
}
