package sqlitefile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// diskKind has two tables, so that one can be written to while the pages of the
// other stay as they are.
var diskKind = Kind{
	Name: "two tables", ApplicationID: 0x6469736b,
	Schema: []string{"CREATE TABLE a (text TEXT) STRICT", "CREATE TABLE b (text TEXT) STRICT"},
}

// ownedKind is the same for a file that one process owns.
var ownedKind = func() Kind {
	k := diskKind
	k.Owned = true
	return k
}()

func write(f *File, query string, args ...any) error {
	return f.Write(context.Background(), func(tx *Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	})
}

func readText(t *testing.T, f *File, query string) string {
	t.Helper()
	text, err := Read(t.Context(), f, func(s *Session) (text string, err error) {
		err = s.QueryRow(query, nil, &text)
		return text, err
	})
	must.Succeed(t, err)
	return text
}

const clockStart = 1_800_000_000_000

// openAt opens a file of diskKind by a clock that stands.
func openAt(t *testing.T, path string, opts Options) *File {
	t.Helper()
	return openOf(t, &diskKind, path, opts)
}

func openOf(t *testing.T, kind *Kind, path string, opts Options) *File {
	t.Helper()
	if opts.NowMS == nil {
		opts.NowMS = func() int64 { return clockStart }
	}
	f, err := Open(t.Context(), path, kind, opts)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func mustClose(t *testing.T, f *File) {
	t.Helper()
	must.Succeed(t, f.Close())
}

func mustWrite(t *testing.T, f *File, query string) {
	t.Helper()
	must.Succeed(t, write(f, query))
}

// add writes a row.
func add(t *testing.T, f *File, text string) {
	t.Helper()
	mustWrite(t, f, "INSERT INTO a VALUES ('"+text+"')")
}

// wrote opens the file, writes rows and closes it.
func wrote(t *testing.T, path string, opts Options, texts ...string) {
	t.Helper()
	f := openAt(t, path, opts)
	for _, text := range texts {
		add(t, f, text)
	}
	mustClose(t, f)
}

// rolledBack makes a file that was put back as it was before the last write.
func rolledBack(t *testing.T, path string, opts Options) {
	t.Helper()
	wrote(t, path, opts, "old")
	disktest.Run(t, "cp", path, path+".old")
	wrote(t, path, opts, "forgotten")
	disktest.Run(t, "cp", path+".old", path)
}

// inLive returns the options of a process with a live directory.
func inLive(live string) Options { return Options{LiveDir: live, TermMS: term} }

// look reads the file, so that Known is up to date.
func look(ctx context.Context, f *File) error {
	_, err := Read(ctx, f, func(*Session) (struct{}, error) { return struct{}{}, nil })
	return err
}

// fenceOf is the fence as a read finds it.
func fenceOf(t *testing.T, f *File) Fence {
	t.Helper()
	must.Succeed(t, look(t.Context(), f))
	return f.Known()
}

func mustNotBeFenced(t *testing.T, f *File) {
	t.Helper()
	if fence := fenceOf(t, f); fence.UntilMS != 0 || fence.Forgot || !fence.Trusted {
		t.Errorf("the file is fenced: %+v", fence)
	}
}

func mustBeFenced(t *testing.T, f *File, why string) Fence {
	t.Helper()
	fence := fenceOf(t, f)
	if !fence.Holds(f.NowMS()) || !strings.Contains(fence.Reason, why) || !fence.Forgot || fence.Trusted {
		t.Fatalf("the fence is %+v, want one because %s", fence, why)
	}
	return fence
}

const term = 60_000

// Pages that are put back under a process look whole, and the process has later ones in its
// memory: only the digest tells that rows are missing, and only through a new connection.
func TestMixtureUnderAProcess(t *testing.T) {
	for name, kind := range map[string]*Kind{"shared": &diskKind, "owned": &ownedKind} {
		t.Run(name, func(t *testing.T) {
			live, path := disktest.Memory(t), newPath(t)
			f := openOf(t, kind, path, inLive(live))
			add(t, f, "old")
			f.writeMain(t)
			before, err := os.ReadFile(path)
			must.Succeed(t, err)
			add(t, f, "forgotten")
			mustWrite(t, f, "INSERT INTO b VALUES ('remembered')")
			f.writeMain(t)
			page := rootOf(t, f, "a")
			disktest.Run(t, "sleep", "0.02") // until the kernel's clock goes on
			main, err := os.OpenFile(path, os.O_WRONLY, 0)
			must.Succeed(t, err)
			_, err = main.WriteAt(before[(page-1)*pageSize:page*pageSize], (page-1)*pageSize)
			must.Succeed(t, err)
			t.Cleanup(func() { _ = main.Close() }) // not earlier, see fillFile
			mustBeFenced(t, f, reasonMixed)
			counted(t, f)
			if got := readText(t, f, "SELECT group_concat(text) FROM (SELECT text FROM a UNION ALL SELECT text FROM b)"); got != "old,remembered" {
				t.Errorf("the file has %q: the test does not show what it should", got)
			}
		})
	}
}

// rootOf is the first page of a table.
func rootOf(t *testing.T, f *File, table string) (page int64) {
	t.Helper()
	page, err := Read(t.Context(), f, func(s *Session) (page int64, err error) {
		err = s.QueryRow("SELECT rootpage FROM sqlite_schema WHERE name = ?", []any{table}, &page)
		return page, err
	})
	must.Succeed(t, err)
	return page
}

// writeMain writes a log into the main file.
func (f *File) writeMain(t *testing.T) {
	t.Helper()
	if _, err := inWorker(t.Context(), f, func() (struct{}, error) {
		f.writingMain(func() {
			var busy, pages, written int
			must.Succeed(t, f.session.QueryRow("PRAGMA wal_checkpoint(PASSIVE)", nil, &busy, &pages, &written))
			if busy != 0 || pages != written {
				t.Errorf("checkpoint: %d %d %d", busy, pages, written)
			}
		})
		return struct{}{}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// What touches the file without changing it, and what other programs do to it beside its
// records, is no reason for a fence.
func TestTouchedFileIsLookedThrough(t *testing.T) {
	disk, live := disktest.Ext4(t), disktest.Memory(t)
	path := filepath.Join(disk.Dir(), "db")
	f := openAt(t, path, inLive(live))
	add(t, f, "x")
	for _, touch := range [][]string{{"touch", path}, {"chmod", "640", path}, {"ln", path, path + ".link"}} {
		disktest.Run(t, touch[0], touch[1:]...)
		mustNotBeFenced(t, f)
		mustWrite(t, f, "INSERT INTO b VALUES ('x')")
	}
	for _, query := range []string{
		"VACUUM", "ANALYZE", "PRAGMA optimize", "CREATE TABLE theirs AS SELECT * FROM a", "INSERT INTO theirs SELECT * FROM a", "CREATE INDEX theirs_i ON a (text)",
		"CREATE VIEW theirs_v AS SELECT * FROM a", "CREATE VIRTUAL TABLE theirs_fts USING fts5(text)", "INSERT INTO theirs_fts SELECT text FROM a",
		"PRAGMA journal_mode=WAL; " + litestream + "; PRAGMA journal_mode=DELETE",
	} {
		visit := func() {
			t.Helper()
			other, err := Connect(t.Context(), path)
			must.Succeed(t, err)
			must.Succeed(t, errors.Join(other.ExecOnce(query), other.Close()))
		}
		visit()
		mustNotBeFenced(t, f)
		add(t, f, "z")
		mustClose(t, f)
		if !strings.HasPrefix(query, "CREATE") {
			visit() // no process has the file open
		}
		f = openAt(t, path, inLive(live))
		mustNotBeFenced(t, f)
	}
	counted(t, f)
}

// litestream is what Litestream 0.3 writes into a file that it replicates, beside its log.
const litestream = `CREATE TABLE IF NOT EXISTS _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER);
	CREATE TABLE IF NOT EXISTS _litestream_lock (id INTEGER);
	INSERT INTO _litestream_seq (id, seq) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET seq = seq + 1`

// A tool that turns a file of leases into one with a log is named, and so is the way back. No
// record is lost, and nothing is fenced.
func TestLogOfATool(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	f := openAt(t, path, inLive(live))
	add(t, f, "x")
	tool := func(mode string) {
		other, err := Connect(t.Context(), path)
		must.Succeed(t, err)
		must.Succeed(t, errors.Join(other.ExecOnce("PRAGMA journal_mode="+mode), other.Close()))
	}
	tool("WAL")
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "WAL mode") || !strings.Contains(err.Error(), "journal_mode=DELETE") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a write", write(f, "INSERT INTO a VALUES ('y')"))
	refused("a read", look(t.Context(), f))
	_, err := Open(t.Context(), path, &diskKind, inLive(live))
	refused("an opening", err)
	tool("DELETE")
	add(t, f, "z")
	mustNotBeFenced(t, f)
	if got := readText(t, f, "SELECT group_concat(text) FROM a"); got != "x,z" {
		t.Errorf("there is %q", got)
	}
}

// A fence lasts for the terms, and until the ends, that are known.
func TestHowLongAFenceLasts(t *testing.T) {
	for name, test := range map[string]struct {
		last, latestEnd, longest int64 // in the copy
		seenEnd, seenLongest     int64 // of the watermark; 0: none
		term, maxTerm            int64
		want                     int64
	}{
		"the configured term":             {term: 500, want: 500},
		"the longest that was granted":    {longest: 700, term: 500, want: 700},
		"the longest that can be":         {longest: 700, term: 500, maxTerm: 900, want: 900},
		"a watermark knows better":        {longest: 700, maxTerm: 900, seenEnd: 100, seenLongest: 750, want: 750},
		"the latest end of the copy":      {latestEnd: 5000, term: 500, want: 5000},
		"the latest end of the watermark": {latestEnd: 5000, term: 500, seenEnd: 6000, seenLongest: 1, want: 6000},
		"a clock that is behind":          {last: 4000, term: 500, want: 4500},
	} {
		t.Run(name, func(t *testing.T) {
			f := &File{kind: &noteKind, opts: Options{NowMS: func() int64 { return clockStart }, TermMS: test.term, MaxTermMS: test.maxTerm}}
			row := life{ID: uuid.New(), Commits: 7, LongestMS: test.longest}
			if test.last != 0 {
				row.LastMS = clockStart + test.last
			}
			if test.latestEnd != 0 {
				row.LatestEndMS = clockStart + test.latestEnd
			}
			var seen sight
			if test.seenEnd != 0 {
				seen = sight{Done: point{row.ID, 9}, LatestEndMS: clockStart + test.seenEnd, LongestMS: test.seenLongest}
			}
			next := f.fenced(row, seen, reasonOlder)
			if got := next.FenceEnds - clockStart; got != test.want {
				t.Errorf("fenced for %d ms, want %d", got, test.want)
			}
			if next.ID == row.ID || next.Commits <= max(row.Commits, seen.Done.Commits) || !next.Forgot || next.Trusted || next.LatestEndMS < seen.LatestEndMS {
				t.Errorf("the new life is %+v", next)
			}
		})
	}
}

// A fence that begins while another lasts is no shorter.
func TestFenceDuringAFence(t *testing.T) {
	var clock atomic.Int64
	clock.Store(clockStart)
	f := openAt(t, newPath(t), Options{NowMS: clock.Load, TermMS: 1000})
	if err := f.Write(t.Context(), func(tx *Tx) error {
		tx.Grants(clockStart + 5000)
		_, err := tx.Exec("INSERT INTO a VALUES ('x')")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	first, err := f.Fence(t.Context())
	if err != nil || first.UntilMS != clockStart+5000 {
		t.Fatalf("%+v, %v", first, err)
	}
	clock.Add(4500)
	second, err := f.Fence(t.Context())
	if err != nil || second.UntilMS != clockStart+4500+5000 || second.Life == first.Life {
		t.Errorf("%+v, %v", second, err)
	}
	must.Succeed(t, f.Init(t.Context()))
	if fence := fenceOf(t, f); fence.Holds(clock.Load()) || !fence.Trusted || !fence.Forgot || fence.Life != second.Life {
		t.Errorf("after Init: %+v", fence)
	}
	commits := f.commits
	if err := f.Init(t.Context()); err != nil || f.commits != commits {
		t.Errorf("on a file that lacks nothing Init writes (%v)", err)
	}
}

// A fence lasts for the longest term of all processes that use the file: also of a process that
// comes later, and has its operation refused. Nothing of that operation is kept.
func TestFenceOfALongerTerm(t *testing.T) {
	path := newPath(t)
	f := openAt(t, path, Options{TermMS: term})
	fence, err := f.Fence(t.Context())
	if err != nil || fence.UntilMS != clockStart+term {
		t.Fatalf("%+v, %v", fence, err)
	}
	other := openAt(t, path, Options{TermMS: 3 * term})
	write := func(tx *Tx) error {
		_, err := tx.Exec("INSERT INTO a VALUES ('x')")
		return errors.Join(err, errRefused)
	}
	if err := other.Write(t.Context(), write); !errors.Is(err, errRefused) {
		t.Errorf("the error is %v", err)
	}
	for _, f := range []*File{f, other} {
		if fence := fenceOf(t, f); fence.UntilMS != clockStart+3*term {
			t.Errorf("it is fenced for %d ms, want %d", fence.UntilMS-clockStart, 3*term)
		}
	}
	if kept := readText(t, f, "SELECT count(*) FROM a"); kept != "0" {
		t.Errorf("%s rows of a refused operation are kept", kept)
	}
	commits := other.commits
	if err := other.Write(t.Context(), write); !errors.Is(err, errRefused) || other.commits != commits {
		t.Errorf("a refusal is committed again (%v)", err)
	}
}

// A file system without birth times (inodes of 128 bytes) fences at each opening, unless a
// watermark knows better.
func TestNoBirthTime(t *testing.T) {
	disk, live := disktest.Ext4(t, "-I", "128"), disktest.Memory(t)
	path := filepath.Join(disk.Dir(), "db")
	f := openAt(t, path, inLive(live))
	if f.id.sure {
		t.Skip("this file system has birth times even so")
	}
	first := mustBeFenced(t, f, reasonUnknown)
	add(t, f, "x")
	mustClose(t, f)
	f = openAt(t, path, inLive(live))
	if again := fenceOf(t, f); again.Life != first.Life {
		t.Errorf("fenced again beside its watermark: %+v", again)
	}
	joined := openAt(t, path, Options{TermMS: term})
	if again := fenceOf(t, joined); again.Life != first.Life {
		t.Errorf("fenced again by a process that shares the watermark: %+v", again)
	}
	mustClose(t, joined)
	mustClose(t, f)
	backup := filepath.Join(disk.Dir(), "backup")
	disktest.Copy(t, path, backup)
	wrote(t, path, inLive(live), "y")
	disktest.Ways[0].Put(t, backup, path, false) // with the inode of before
	f = openAt(t, path, inLive(live))
	if again := fenceOf(t, f); again.Life == first.Life {
		t.Errorf("a copy is taken for the file: %+v", again)
	}
	mustClose(t, f)
	must.Succeed(t, os.RemoveAll(live)) // a reboot
	mustBeFenced(t, openAt(t, path, inLive(live)), reasonUnknown)
}

// Another healthy file of the kind in the place of the used one knows nothing of its grants.
func TestAnotherFileInItsPlace(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	wrote(t, path, inLive(live), "x")
	other := openAt(t, path+".other", Options{TermMS: term})
	for range 5 {
		add(t, other, "y")
	}
	mustClose(t, other)
	disktest.Run(t, "mv", path+".other", path)
	mustBeFenced(t, openAt(t, path, inLive(live)), reasonOther)
}

// Without a watermark a process still notices that the file is older than it was.
func TestWithoutAWatermark(t *testing.T) {
	path := newPath(t)
	f := openAt(t, path, Options{TermMS: term})
	add(t, f, "x")
	add(t, f, "y")
	s, err := Connect(t.Context(), path)
	must.Succeed(t, err)
	must.Succeed(t, errors.Join(s.ExecOnce("UPDATE life SET commits = 1"), s.Close()))
	mustBeFenced(t, f, reasonOlder)
}

// A copy in which SQLite finds a fault is refused, and not fenced.
func TestDamagedCopy(t *testing.T) {
	path := newPath(t)
	mustClose(t, openAt(t, path, Options{TermMS: term}))
	s, err := Connect(t.Context(), path)
	must.Succeed(t, err)
	for _, q := range []string{
		"INSERT INTO a VALUES ('x'), ('y')", "CREATE INDEX by_text ON a (text)", "PRAGMA writable_schema = ON",
		"UPDATE sqlite_schema SET sql = 'CREATE INDEX by_text ON a (text DESC)' WHERE name = 'by_text'",
	} {
		must.Succeed(t, s.ExecOnce(q))
	}
	must.Succeed(t, s.Close())
	disktest.Run(t, "cp", path, path+".copy")
	_, err = Open(t.Context(), path+".copy", &diskKind, Options{TermMS: term})
	if err == nil || !strings.Contains(err.Error(), "the database is damaged, and is left as it is") || !strings.Contains(err.Error(), "by_text") {
		t.Errorf("the error is %v", err)
	}
}

// A process that ends in the middle of fencing leaves a fence, and the next one
// begins no other.
func TestKilledWhileFencing(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	rolledBack(t, path, inLive(live))
	killed := errors.New("killed")
	if _, err := Open(t.Context(), path, &diskKind, Options{LiveDir: live, TermMS: term, At: func(step string) error {
		if step == StepCommitted {
			return killed
		}
		return nil
	}}); !errors.Is(err, killed) {
		t.Fatalf("it was not killed: %v", err)
	}
	s, err := Connect(t.Context(), path)
	must.Succeed(t, err)
	row, err := readLife(s)
	if err := errors.Join(err, s.Close()); err != nil || !row.Forgot {
		t.Fatalf("the file has %+v, %v", row, err)
	}
	if fence := mustBeFenced(t, openAt(t, path, inLive(live)), reasonOlder); fence.Life != row.ID.String() {
		t.Errorf("fenced again: %+v after %+v", fence, row.fence())
	}
}

// Close does not wait for a disk that does not answer.
func TestCloseOfAHangingFile(t *testing.T) {
	hang, begun := make(chan struct{}), make(chan struct{})
	f := openAt(t, newPath(t), Options{At: func(step string) error {
		if step == StepWritten {
			close(begun)
			<-hang
		}
		return nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- f.Write(ctx, func(t *Tx) error { _, err := t.Exec("INSERT INTO a VALUES ('x')"); return err })
	}()
	<-begun
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the write: %v", err)
	}
	before := time.Now()
	if err := f.Close(); err == nil || !strings.Contains(err.Error(), "does not answer") || time.Since(before) < closeWait {
		t.Errorf("Close: %v after %v", err, time.Since(before))
	}
	close(hang)
	<-f.stopped
	mustClose(t, f)
}

// A commit waits for a reader in another process, and is on the disk once that is gone. A group
// is undone when its callers have all gone.
func TestCommitWaitsForAReader(t *testing.T) {
	path := newPath(t)
	written := make(chan struct{}, 1)
	f := openAt(t, path, Options{At: func(step string) error {
		if step == StepWritten {
			written <- struct{}{}
		}
		return nil
	}})
	reading := func() (end func()) {
		reader, err := Connect(t.Context(), path)
		must.Succeed(t, err)
		must.Succeed(t, reader.ExecOnce("BEGIN"))
		var rows int
		must.Succeed(t, reader.QueryRow("SELECT count(*) FROM a", nil, &rows))
		return func() { must.Succeed(t, reader.Close()) }
	}
	end := reading()
	done := make(chan error, 1)
	go func() { done <- write(f, "INSERT INTO a VALUES ('patient')") }()
	<-written
	end()
	must.Succeed(t, <-done)
	end = reading()
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		done <- f.Write(ctx, func(tx *Tx) error { _, err := tx.Exec("INSERT INTO a VALUES ('gone')"); return err })
	}()
	<-written
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the write: %v", err)
	}
	// The worker is free again, although the reader is there still.
	if got := readText(t, f, "SELECT group_concat(text) FROM a"); got != "patient" {
		t.Errorf("there is %q", got)
	}
	end()
	add(t, f, "next")
	if got := readText(t, f, "SELECT group_concat(text) FROM a"); got != "patient,next" {
		t.Errorf("there is %q", got)
	}
}

// A read that rests on a commit raises the watermark for it before the answer: the process that
// made it may be killed before it does so.
func TestReaderRaisesTheWatermark(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	wrote(t, path, inLive(live), "x")
	disktest.Run(t, "cp", path, path+".old")
	f := openAt(t, path, inLive(live))
	killed := errors.New("killed")
	opts := inLive(live)
	opts.At = func(step string) error {
		if step == StepCommitted {
			return killed
		}
		return nil
	}
	late := openAt(t, path, opts)
	if err := write(late, "INSERT INTO a VALUES ('y')"); !errors.Is(err, killed) {
		t.Fatalf("it was not killed: %v", err)
	}
	session := f.session
	if got := readText(t, f, "SELECT group_concat(text) FROM a"); got != "x,y" {
		t.Fatalf("there is %q", got)
	}
	if f.session != session {
		t.Error("the commit was taken for another program's write")
	}
	mustNotBeFenced(t, f)
	mustClose(t, f)
	mustClose(t, late)
	disktest.Run(t, "cp", path+".old", path)
	mustBeFenced(t, openAt(t, path, inLive(live)), reasonOlder)
}
