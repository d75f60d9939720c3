package sqlitefile

import (
	"context"
	"fmt"
	"time"
)

// lastWord is how long a caller whose time is up still listens for the reason.
const lastWord = 20 * time.Millisecond

// work runs the operations one after the other, as SQLite has one writer
// anyway. It is a goroutine of its own so that a caller whose context ends
// while a disk hangs in fsync goes its way.
func (f *File) work() {
	defer close(f.stopped)
	for {
		select {
		case task := <-f.tasks:
			task()
		case j := <-f.writes:
			f.writeAll(f.waiting(j))
		case <-f.closing:
			f.closeErr = f.explain(f.session.Close())
			return
		}
	}
}

// Read has op read, outside any transaction: what it reads with one statement
// is one state of the file. It may be called again where another process's lock
// is in the way. The error tells when ctx ended or the file was closed first; op
// may then still be running.
func Read[T any](ctx context.Context, f *File, op func(*Session) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	task := func() {
		var r result
		r.err = f.read(ctx, func(s *Session) (err error) {
			r.value, err = op(s)
			return err
		})
		done <- r
	}
	r, err := await(ctx, f, f.tasks, task, done)
	if err != nil {
		return r.value, err
	}
	return r.value, r.err
}

// read runs op, repeating it while another process's lock is in the way.
func (f *File) read(ctx context.Context, op func(*Session) error) error {
	if err := f.files.check(); err != nil {
		return f.explain(err)
	}
	if err := retryBusy(ctx, f.closing, func() error {
		if err := f.kind.current(f.session); err != nil {
			return err
		}
		return op(f.session)
	}); err != nil {
		return f.explain(err)
	}
	return f.explain(f.files.check())
}

// await hands what to the worker and returns what comes of it.
func await[W, R any](ctx context.Context, f *File, queue chan<- W, what W, done <-chan R) (R, error) {
	var none R
	if err := ctx.Err(); err != nil {
		return none, err
	}
	select {
	case queue <- what:
	case <-ctx.Done():
		return none, fmt.Errorf("sqlite:%s: waiting for other operations: %w", f.path, ctx.Err())
	case <-f.closing:
		return none, ErrClosed
	}
	select {
	case r := <-done:
		return r, nil
	case <-ctx.Done():
		// The worker stops waiting for locks for the same reason, and knows
		// better what it waited for: give it a moment to say so.
		moment := time.NewTimer(lastWord)
		defer moment.Stop()
		select {
		case r := <-done:
			return r, nil
		case <-moment.C:
			return none, fmt.Errorf("sqlite:%s: the disk does not answer: %w", f.path, ctx.Err())
		}
	}
}
