package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	sqlite3 "modernc.org/sqlite/lib"
)

// The steps of a write that Provider.at is told of.
const (
	stepBegun     = "begun"     // holds the lock, nothing written
	stepWritten   = "written"   // everything written, nothing committed
	stepCommitted = "committed" // on disk, the caller does not know yet
)

// lastWord is how long a caller whose time is up still listens for the reason.
const lastWord = 20 * time.Millisecond

// work runs the operations one after the other, as SQLite has one writer
// anyway. It is a goroutine of its own so that a caller whose context ends
// while a disk hangs in fsync goes its way.
func (p *Provider) work() {
	defer close(p.stopped)
	for {
		select {
		case task := <-p.tasks:
			task()
		case j := <-p.writes:
			p.writeAll(p.waiting(j))
		case <-p.closing:
			p.closeErr = explain(p.path, p.session.close())
			return
		}
	}
}

// submit has the worker call op, and returns its result, or an error as soon as
// ctx ends or the provider is closed. op may then still be running or finish
// later: its effect is unknown.
func submit[T any](ctx context.Context, p *Provider, op func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	task := func() {
		value, err := op()
		done <- result{value, err}
	}
	r, err := await(ctx, p, p.tasks, task, done)
	if err != nil {
		return r.value, err
	}
	return r.value, r.err
}

// await hands what to the worker and returns what comes of it.
func await[W, R any](ctx context.Context, p *Provider, queue chan<- W, what W, done <-chan R) (R, error) {
	var none R
	if err := ctx.Err(); err != nil {
		return none, err
	}
	select {
	case queue <- what:
	case <-ctx.Done():
		return none, fmt.Errorf("sqlite:%s: waiting for other operations: %w", p.path, ctx.Err())
	case <-p.closing:
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
			return none, fmt.Errorf("sqlite:%s: the disk does not answer: %w", p.path, ctx.Err())
		}
	}
}

// transaction is a write under way: the file's lock is held, and nothing is
// durable before the commit. Operations are methods of it and neither begin
// nor commit, so that several can share one commit.
type transaction struct {
	*session
	now int64 // Unix ms, read once, under the lock
	// keep has an operation committed although its caller has gone: it contains
	// work that every later attempt would have to do again.
	keep bool
	kept bool // keep was set by any of the operations
}

// outward adds the path to errors of the database, and leaves answers to the
// caller as they are.
func (p *Provider) outward(err error) error {
	if primaryCode(err) != 0 || errors.Is(err, errInconsistent) {
		return explain(p.path, err)
	}
	return err
}

// rollback ends a transaction that failed. After some errors SQLite has ended
// it already and says so with its general error, which is none here.
func (s *session) rollback() error {
	if _, err := s.exec("ROLLBACK"); primaryCode(err) != sqlite3.SQLITE_ERROR {
		return err
	}
	return nil
}

// read runs op, repeating it while another process's lock is in the way.
func (p *Provider) read(ctx context.Context, op func(*session) error) error {
	if err := p.files.check(); err != nil {
		return explain(p.path, err)
	}
	if err := retryBusy(ctx, p.closing, func() error { return op(p.session) }); err != nil {
		return explain(p.path, err)
	}
	return explain(p.path, p.files.check())
}
