package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// madeFile is a healthy file with some grants, which no process has open.
func madeFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leases.db")
	p := openLeases(t, backend.LeaseFile{Path: path, Services: defaultServices()})
	for range 3 {
		if _, err := p.Acquire(context.Background(), provider.AcquireRequest{ThroughputPerMS: 256 * 100}); err != nil {
			t.Fatal(err)
		}
	}
	must.Succeed(t, p.Close())
	return path
}

// execute runs statements on a file that no process has open.
func execute(t *testing.T, path string, statements ...string) {
	t.Helper()
	s, err := sqlitefile.Connect(context.Background(), path)
	must.Succeed(t, err)
	defer s.Close()
	for _, q := range statements {
		must.Succeed(t, s.ExecOnce(q))
	}
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	write := func(data []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			must.Succeed(t, os.WriteFile(path, data, 0o600))
		}
	}
	overwrite := func(offset, length int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must.Succeed(t, err)
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
			must.Succeed(t, os.Truncate(path, size))
		}
	}
	cut := func(t *testing.T, path string) {
		info, err := os.Stat(path)
		must.Succeed(t, err)
		must.Succeed(t, os.Truncate(path, info.Size()/8192*4096))
	}
	for name, test := range map[string]struct {
		harm func(*testing.T, string)
		want string
	}{
		"text":                 {write([]byte(strings.Repeat("not a database\n", 1000))), "not an SQLite database"},
		"short text":           {write([]byte("hello\n")), "not an SQLite database"},
		"empty":                {truncate(0), "it is empty"},
		"cut to one page":      {truncate(4096), "damaged"},
		"cut to half a page":   {truncate(2048), "damaged"},
		"cut in the middle":    {cut, "damaged"},
		"zeroed header":        {overwrite(0, 100), "not an SQLite database"},
		"damaged schema page":  {overwrite(100, 3000), "damaged"},
		"newer schema":         {sql("PRAGMA user_version=3"), "it was written by a newer kazahanad (schema 3, this one knows up to 2): upgrade this one"},
		"older schema":         {sql("PRAGMA user_version=1"), "all leases granted from it have ended (20 minutes after"},
		"no schema version":    {sql("PRAGMA user_version=0"), "schema version is 0"},
		"another program's":    {sql("PRAGMA application_id=252006674"), "another program"},
		"another program's, 0": {sql("PRAGMA application_id=0"), "another program"},
		"tables are missing":   {sql("DROP TABLE record"), "no such table"},
	} {
		t.Run(name, func(t *testing.T) {
			path := madeFile(t)
			test.harm(t, path)
			before, err := os.ReadFile(path)
			must.Succeed(t, err)
			p, err := backend.OpenLeaseFile(context.Background(), backend.LeaseFile{Path: path, Services: defaultServices()})
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
	must.Succeed(t, os.WriteFile(file, []byte("x"), 0o600))
	must.Succeed(t, os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "dangling")))
	must.Succeed(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for path, want := range map[string]string{
		dir:                            "it is a directory",
		filepath.Join(dir, "dangling"): "symbolic link",
		filepath.Join(dir, "fifo"):     "no regular file",
		filepath.Join(file, "x.db"):    "not a directory",
		"/dev/null":                    "no regular file",
		"/proc/leases.db":              "cannot be created",
		"leases.db":                    "must be absolute",
	} {
		p, err := backend.OpenLeaseFile(context.Background(), backend.LeaseFile{Path: path, Services: defaultServices()})
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
	path := filepath.Join(dir, "new", "dir", "a ?mode=ro&#%41;'\"日本.db") // all that means something in a URI
	p := openLeases(t, backend.LeaseFile{Path: path, Services: defaultServices()})
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{
		filepath.Join(dir, "new"): 0o755 | os.ModeDir, filepath.Dir(path): 0o700 | os.ModeDir,
		path: 0o600, path + "-journal": 0o600, path + "-watermark": 0o600,
	} {
		info, err := os.Stat(name)
		must.Succeed(t, err)
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
}

// A file that goes away or is replaced under a process is noticed at its next operation,
// and also when that happens right before the commit.
func TestFileGoneOrReplaced(t *testing.T) {
	remove := func(names ...string) (err error) {
		for _, name := range names {
			err = errors.Join(err, os.Remove(name))
		}
		return err
	}
	other := madeFile(t)
	for name, test := range map[string]struct {
		harm func(path, target string) error
		want error
	}{
		"deleted":       {func(_, target string) error { return remove(target) }, sqlitefile.ErrMoved},
		"all deleted":   {func(_, target string) error { return remove(target, target+"-journal", target+"-watermark") }, sqlitefile.ErrMoved},
		"renamed":       {func(_, target string) error { return os.Rename(target, target+".old") }, sqlitefile.ErrMoved},
		"replaced":      {func(_, target string) error { return os.Rename(madeFile(t), target) }, sqlitefile.ErrMoved},
		"link replaced": {func(path, _ string) error { return errors.Join(os.Remove(path), os.Symlink(other, path)) }, sqlitefile.ErrMoved},
		"put back": {func(_, target string) error {
			return errors.Join(os.Rename(target, target+".old"), os.Rename(target+".old", target))
		}, nil},
	} {
		for _, step := range []string{"before", sqlitefile.StepWritten} {
			target := madeFile(t)
			path := filepath.Join(t.TempDir(), "leases.db")
			must.Succeed(t, os.Symlink(target, path))
			p := openLeases(t, backend.LeaseFile{Path: path, Services: defaultServices(), LiveDir: disktest.Memory(t)})
			l := mustAcquire(t, p)
			harmed := false
			p.at = func(at string) error {
				if at != step || harmed {
					return nil
				}
				harmed = true
				return test.harm(path, target)
			}
			if step == "before" {
				must.Succeed(t, p.at(step))
			}
			if got, err := p.Acquire(t.Context(), provider.AcquireRequest{}); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Errorf("%s, %s: Acquire gave %v and the error %v, want %v", name, step, got, err, test.want)
			}
			if _, err := provider.Verify(t.Context(), p, "", []lease.Lease{l}); !errors.Is(err, test.want) {
				t.Errorf("%s, %s: Verify: %v", name, step, err)
			}
			if err := p.Release(t.Context(), releaseOf(l)); !errors.Is(err, test.want) || test.want != nil && !errors.Is(err, provider.ErrNotSent) {
				t.Errorf("%s, %s: Release: %v", name, step, err)
			}
		}
	}
}

// lockFile holds the file's write lock as another process would, until the test
// ends.
func lockFile(t *testing.T, path string) (unlock func()) {
	t.Helper()
	s, err := sqlitefile.Connect(context.Background(), path)
	must.Succeed(t, err)
	must.Succeed(t, s.ExecOnce("BEGIN IMMEDIATE"))
	return func() {
		if err := errors.Join(s.ExecOnce("ROLLBACK"), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Callers that wait for the lock of another process leave when their time is up, and when the
// provider is closed. Their operations are not done later.
func TestLockOfAnotherProcess(t *testing.T) {
	path := madeFile(t)
	p := openLeases(t, backend.LeaseFile{Path: path, Services: defaultServices()})
	l := mustAcquire(t, p)
	unlock := lockFile(t, path)
	release := func(ctx context.Context) error { return p.Release(ctx, releaseOf(l)) }
	await.Late(t, "Release", release, func(err error) bool {
		return errors.Is(err, provider.ErrNotSent) && errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), path)
	})
	if !isHeld(t, p, l) { // reading needs no lock
		t.Error("the lease was released")
	}
	done := make(chan error, 1)
	go func() { done <- release(context.Background()) }()
	unlock()
	if err := <-done; err != nil || isHeld(t, p, l) {
		t.Errorf("once the lock is free: %v", err)
	}
	defer lockFile(t, path)()
	begun := make(chan struct{})
	go func() {
		close(begun)
		_, err := p.Acquire(context.Background(), provider.AcquireRequest{})
		done <- err
	}()
	<-begun
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	// The acquire came before the end or after it: the file, its opener or the pool refuses it.
	if err := <-done; err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Acquire: the error is %v, want that the provider is closed", err)
	}
}

// After its caller has left, a release is carried out only if the worker has begun it, and both
// know: behind another operation it is not, and before the commit it is undone.
func TestReleaseWhoseCallerLeaves(t *testing.T) {
	for _, step := range []string{sqlitefile.StepBegun, sqlitefile.StepWritten} {
		for _, behind := range []bool{false, true} {
			p := openLeases(t, backend.LeaseFile{Path: madeFile(t), Services: defaultServices()})
			l := mustAcquire(t, p)
			hanging, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			p.at = func(at string) error {
				if at == step {
					once.Do(func() {
						close(hanging)
						<-goOn
					})
				}
				return nil
			}
			other := make(chan error, 1)
			other <- nil
			if behind {
				<-other
				go func() {
					_, err := p.Acquire(context.Background(), provider.AcquireRequest{})
					other <- err
				}()
				<-hanging
			}
			ctx, leave := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- p.Release(ctx, releaseOf(l)) }()
			<-hanging
			leave()
			sent := !behind && step == sqlitefile.StepWritten
			if err := <-done; err == nil || errors.Is(err, provider.ErrNotSent) == sent {
				t.Errorf("at %q, behind %v: the error is %v, want one of which ErrNotSent is %v", step, behind, err, !sent)
			}
			close(goOn)
			if err := <-other; err != nil {
				t.Error(err)
			}
			if !isHeld(t, p, l) {
				t.Errorf("at %q, behind %v: the lease was released", step, behind)
			}
		}
	}
}

// Where a write fails decides whether its effect is known.
func TestReleaseThatFails(t *testing.T) {
	p := openLeases(t, backend.LeaseFile{Path: madeFile(t), Services: defaultServices()})
	l := mustAcquire(t, p)
	broken := errors.New("broken")
	// The last one is carried out: another release after it would find that, and write nothing.
	for _, step := range []string{sqlitefile.StepBegun, sqlitefile.StepWritten, sqlitefile.StepCommitted} {
		sent := step != sqlitefile.StepBegun
		p.at = func(at string) error {
			if at == step {
				return broken
			}
			return nil
		}
		if err := p.Release(context.Background(), releaseOf(l)); !errors.Is(err, broken) || errors.Is(err, provider.ErrNotSent) == sent {
			t.Errorf("at %q: the error is %v, want one of which ErrNotSent is %v", step, err, !sent)
		}
	}
}

// fillUp acquires until the store cannot take any more.
func fillUp(t *testing.T, p *leases) {
	t.Helper()
	for range 10_000 {
		_, err := p.Acquire(context.Background(), provider.AcquireRequest{
			ThroughputPerMS: 256 * 20, Meta: map[string]string{"padding": strings.Repeat("x", 2000)},
		})
		if err == nil {
			continue
		}
		if !strings.Contains(err.Error(), "full") || !strings.Contains(err.Error(), p.path) {
			t.Errorf("the error is %v, want one that says so", err)
		}
		return
	}
	t.Fatal("it never became full")
}

func TestDiskFull(t *testing.T) {
	dir := disktest.Small(t, "2m")
	path := filepath.Join(dir, "leases.db")
	ballast := filepath.Join(dir, "ballast")
	must.Succeed(t, os.WriteFile(ballast, make([]byte, 1<<20), 0o600))
	p := openLeases(t, backend.LeaseFile{Path: path, Services: defaultServices()})
	defer p.Close() // before the file system goes
	fillUp(t, p)
	free := disktest.Fill(t, filepath.Join(dir, "rest"))
	before, err := os.ReadDir(dir)
	must.Succeed(t, err)
	if other, err := backend.OpenLeaseFile(t.Context(), backend.LeaseFile{Path: filepath.Join(dir, "other.db"), Services: defaultServices()}); err == nil {
		other.Close()
		t.Error("a file was created on the full disk")
	}
	if after, err := os.ReadDir(dir); err != nil || len(after) != len(before) {
		t.Errorf("left behind: %v (%v)", after, err)
	}
	free()
	must.Succeed(t, os.Remove(ballast))
	mustAcquire(t, p) // with space again
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	checkIntegrity(t, path)
	disktest.Run(t, "mount", "-o", "remount,ro", dir)
	for _, name := range []string{"leases.db", "new.db"} {
		p, err := backend.OpenLeaseFile(context.Background(), backend.LeaseFile{Path: filepath.Join(dir, name), Services: defaultServices()})
		if err == nil {
			p.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%s on a read-only file system: %v", name, err)
		}
	}
}

// TestPermissions opens files as a user who may not, in a process of its own.
func TestPermissions(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	exe := executable(t)
	dir := filepath.Dir(exe) // others may enter it, unlike t.TempDir
	writable := filepath.Join(dir, "writable")
	must.Succeed(t, errors.Join(os.Mkdir(writable, 0o777), os.Chmod(writable, 0o777)))
	made := func(path string, mode os.FileMode) string {
		must.Succeed(t, errors.Join(openLeases(t, backend.LeaseFile{Path: path, Services: defaultServices()}).Close(), os.Chmod(path, mode)))
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
		asNobody(t, cmd, "")
		out, err := cmd.CombinedOutput()
		if (err == nil) != (test.want == "") || !strings.Contains(string(out), test.want) {
			t.Errorf("%s: %v: %s: want %q", name, err, out, test.want)
		}
	}
}
