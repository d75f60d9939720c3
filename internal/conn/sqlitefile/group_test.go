package sqlitefile

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	tests "github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) { tests.Main(m) }

var noteKind = Kind{
	Name: "notebook", ApplicationID: 0x6e6f7465,
	Schema:  []string{"CREATE TABLE note (text TEXT PRIMARY KEY) STRICT, WITHOUT ROWID"},
	Moved:   "look for it",
	Damaged: "buy a new one",
}

func mustOpen(t *testing.T, path string, opts Options) *File {
	t.Helper()
	f, err := Open(context.Background(), path, &noteKind, opts)
	must.Succeed(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func newPath(t *testing.T) string { return filepath.Join(ring.Dir(t), "notes.db") }

func writing(ctx context.Context, text string) *job {
	return &job{ctx: ctx, op: func(t *Tx) error { return note(t, text) }}
}

func note(t *Tx, text string) error {
	_, err := t.Exec("INSERT INTO note (text) VALUES (?)", text)
	return err
}

// together runs the jobs in one transaction.
func together(f *File, jobs ...*job) {
	done := make(chan struct{})
	f.tasks <- func() {
		f.writeAll(jobs)
		close(done)
	}
	<-done
}

func notes(t *testing.T, f *File) string {
	t.Helper()
	return readText(t, f, "SELECT coalesce(group_concat(text, ' ' ORDER BY text), '') FROM note")
}

var errRefused = errors.New("refused")

// Writes that wait together share a commit, up to a number of them.
func TestWaitingWrites(t *testing.T) {
	queue := make(chan *job, 2*maxGroup)
	for range 2 * maxGroup {
		queue <- &job{}
	}
	for _, want := range []int{maxGroup, maxGroup, 3} {
		if got := len(waiting(queue, &job{})); got != want {
			t.Errorf("%d writes share a commit, want %d", got, want)
		}
	}
}

// Every commit is on the disk before it is answered. Processes share a file with a journal that
// stays; the owner of a file has a log, and its index in memory.
func TestHowSQLiteWrites(t *testing.T) {
	for _, owned := range []bool{false, true} {
		kind, want := noteKind, "2 persist normal"
		if kind.Owned = owned; owned {
			want = "2 wal exclusive"
		}
		f := openOf(t, &kind, newPath(t), Options{})
		if got := readText(t, f, "SELECT synchronous || ' ' || journal_mode || ' ' || locking_mode FROM pragma_synchronous, pragma_journal_mode, pragma_locking_mode"); got != want {
			t.Errorf("owned: %v: %q, want %q", owned, got, want)
		}
	}
}

// What fails alone takes nothing else with it, and leaves nothing behind. The others share a
// commit.
func TestGroupKeepsApart(t *testing.T) {
	commits := 0
	f := mustOpen(t, newPath(t), Options{At: func(step string) error {
		if step == StepCommitted {
			commits++
		}
		return nil
	}})
	gone, cancel := context.WithCancel(context.Background())
	a := writing(context.Background(), "a")
	undone := &job{ctx: context.Background(), op: func(t *Tx) error { return errors.Join(note(t, "undone"), errRefused) }}
	never := writing(gone, "never")
	left, leave := context.WithCancel(context.Background())
	leaving := &job{ctx: left, op: func(t *Tx) error { defer leave(); return note(t, "leaving") }}
	b := writing(context.Background(), "b")
	cancel()
	together(f, a, undone, never, leaving, b)
	for name, test := range map[string]struct {
		j    *job
		want error
	}{
		"first": {a, nil}, "undone": {undone, errRefused},
		"gone before": {never, context.Canceled}, "gone meanwhile": {leaving, context.Canceled},
		"last": {b, nil},
	} {
		if !errors.Is(test.j.err, test.want) {
			t.Errorf("%s: %v, want %v", name, test.j.err, test.want)
		}
	}
	if got := notes(t, f); got != "a b" || commits != 1 {
		t.Errorf("there is %q, after %d commits", got, commits)
	}
}

// An error of the database ends the transaction for all: after some of them
// SQLite has rolled back, and what follows would commit by itself.
func TestGroupFailsTogether(t *testing.T) {
	f := mustOpen(t, newPath(t), Options{})
	twice := func(t *Tx) error { return errors.Join(note(t, "x"), note(t, "x")) }
	a, broken, b := writing(context.Background(), "a"), &job{ctx: context.Background(), op: twice}, writing(context.Background(), "b")
	together(f, a, broken, b)
	for _, j := range []*job{a, broken, b} {
		if j.err == nil {
			t.Error("a job of the group reports success")
		}
	}
	if got := notes(t, f); got != "" {
		t.Errorf("there is %q", got)
	}
	if err := f.Write(context.Background(), func(t *Tx) error { return note(t, "later") }); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// No caller is told of a write before it is on the disk, also where callers share a commit.
func TestGroupCommitFails(t *testing.T) {
	stop := errors.New("the power fails")
	failing := true
	f := mustOpen(t, newPath(t), Options{At: func(step string) error {
		if failing && step == StepWritten {
			return stop
		}
		return nil
	}})
	a, b := writing(context.Background(), "a"), writing(context.Background(), "b")
	together(f, a, b)
	if !errors.Is(a.err, stop) || !errors.Is(b.err, stop) {
		t.Errorf("%v, %v", a.err, b.err)
	}
	failing = false
	if got := notes(t, f); got != "" {
		t.Errorf("there is %q", got)
	}
}

// Jobs that wait while another process has the lock leave when their time is up, and the others
// are served when it is free.
func TestGroupWaitsForTheLock(t *testing.T) {
	path := newPath(t)
	f := mustOpen(t, path, Options{})
	other, err := Connect(context.Background(), path)
	must.Succeed(t, err)
	defer other.Close()
	must.Succeed(t, other.ExecOnce("BEGIN IMMEDIATE"))
	gone, leave := context.WithCancel(context.Background())
	impatient, patient := writing(gone, "impatient"), writing(context.Background(), "patient")
	var all sync.WaitGroup
	all.Go(func() { together(f, impatient, patient) })
	leave()
	must.Succeed(t, other.ExecOnce("COMMIT"))
	all.Wait()
	if got := notes(t, f); !errors.Is(impatient.err, context.Canceled) || patient.err != nil || got != "patient" {
		t.Errorf("%v; %v; there is %q", impatient.err, patient.err, got)
	}
}

// Two kinds of files are never taken for each other.
func TestKindsAreKeptApart(t *testing.T) {
	path := newPath(t)
	must.Succeed(t, mustOpen(t, path, Options{}).Close())
	f, err := OpenStore(context.Background(), path, Options{}, nil)
	if err == nil {
		f.Close()
		t.Fatal("a notebook was opened as a store")
	}
	if want := "sqlite:" + path + ": this file is not a store of locks and sequences that can be used: " +
		"it is an SQLite database of another program (application_id 1852798053)"; err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
	path = StoreBeside(path)
	if f, err = OpenStore(context.Background(), path, Options{}, noteKind.Schema); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, f.Close())
	if f, err := Open(context.Background(), path, &noteKind, Options{}); err == nil {
		f.Close()
		t.Error("a store was opened as a notebook")
	}
}

// A newer process changes the schema of a file that this one has open: then this one does
// nothing more with it.
func TestNewerSchemaUnderARunningProcess(t *testing.T) {
	path := newPath(t)
	f := mustOpen(t, path, Options{})
	s, err := Connect(t.Context(), path)
	must.Succeed(t, err)
	must.Succeed(t, errors.Join(s.ExecOnce("PRAGMA user_version=2"), s.Close()))
	for what, err := range map[string]error{
		"a write": f.Write(t.Context(), func(*Tx) error { t.Error("it writes"); return nil }),
		"a read":  look(t.Context(), f),
	} {
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "written by a newer kazahanad") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
