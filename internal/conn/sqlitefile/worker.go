package sqlitefile

import (
	"context"
	"fmt"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// work runs the operations one after the other: SQLite has one writer anyway. It has a
// goroutine of its own, so that a caller need not wait for a disk that hangs in fsync.
func (f *File) work() {
	defer close(f.stopped)
	for {
		select {
		case task := <-f.tasks:
			task()
		case j := <-f.writes:
			group := waiting(f.writes, j)
			f.writeAll(group)
			f.maintain(len(group))
		case <-f.closing:
			f.closeErr = f.explain(f.leave())
			return
		}
	}
}

// Read calls op in a transaction that only reads: all of its statements see one state of the
// file. If ctx ends or the file is closed first, op may still be running.
func Read[T any](ctx context.Context, f *File, op func(*Session) (T, error)) (T, error) {
	return inWorker(ctx, f, func() (value T, err error) {
		err = f.read(ctx, func(s *Session) (err error) {
			value, err = op(s)
			return err
		})
		return value, err
	})
}

// inWorker calls do in the worker, between operations. If ctx ends or the file is closed
// first, do may still be running.
func inWorker[T any](ctx context.Context, f *File, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	task := func() {
		value, err := do()
		done <- result{value, err}
	}
	r, err := await(ctx, f, f.tasks, task, done)
	if err != nil {
		return r.value, err
	}
	return r.value, r.err
}

// read runs op in the worker.
func (f *File) read(ctx context.Context, op func(*Session) error) error {
	if _, err := f.begin(ctx, "BEGIN", until(ctx, f.closing)); err != nil {
		return f.explain(err)
	}
	err := op(f.session)
	if undone := f.session.rollback(); err == nil {
		err = undone
	}
	if err == nil {
		err = f.moved()
	}
	return f.explain(err)
}

// await sends a request to the worker and returns the result.
func await[W, R any](ctx context.Context, f *File, queue chan<- W, what W, done <-chan R) (R, error) {
	var none R
	if err := ctx.Err(); err != nil {
		return none, connurl.NotSent(err)
	}
	select {
	case queue <- what:
	case <-ctx.Done():
		return none, connurl.NotSent(fmt.Errorf("sqlite:%s: the operation before has not ended, and the disk may not answer: %w", f.path, ctx.Err()))
	case <-f.closing:
		return none, connurl.NotSent(ErrClosed)
	}
	select {
	case r := <-done:
		return r, nil
	case <-ctx.Done():
		return none, fmt.Errorf("sqlite:%s: the disk does not answer, or another process holds the file's lock: %w", f.path, ctx.Err())
	}
}

// The log is written into the main file when it has maxLog pages, SQLite's own limit; its
// length and the room are looked at after askAfter operations.
const (
	maxLog   = 1000
	askAfter = 16
)

// maintain writes a long log into the main file, and makes room. SQLite itself would write the
// log at a commit, and the main file would seem overwritten. A failure is tried again later:
// a commit reports the fault of a disk.
func (f *File) maintain(operations int) {
	if f.unasked += operations; f.unasked < askAfter || f.session == nil {
		return
	}
	f.unasked = 0
	defer f.reserve()
	if !f.kind.Owned {
		return
	}
	var busy, pages, written int
	if err := f.session.QueryRow("PRAGMA wal_checkpoint(NOOP)", nil, &busy, &pages, &written); err != nil || pages < maxLog {
		return
	}
	f.allocated = 0 // a checkpoint may drop the room behind the file's end
	f.writingMain(func() {
		_ = f.session.QueryRow("PRAGMA wal_checkpoint(PASSIVE)", nil, &busy, &pages, &written)
	})
}
