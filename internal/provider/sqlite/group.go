package sqlite

import (
	"context"
	"errors"

	"github.com/kazahana/kazahana/internal/provider"
)

// maxGroup is how many operations one commit may hold: enough that the disk's
// part of each is small, and few enough that the first need not wait long.
const maxGroup = 256

// job is one operation that waits for its commit. Operations that arrive while
// another commit is on its way to the disk share the next one: most of what a
// grant costs is bringing it to the disk, and that is done once for all of them.
type job struct {
	ctx context.Context
	op  func(*transaction) error
	// committed is called in the worker, before anybody else's operation runs,
	// when op was carried out and is on the disk. It may be nil.
	committed func()

	err  error
	over bool          // err is final: the operation is in no commit
	done chan struct{} // closed when err is final; nil: nobody waits
}

// submitWrite is submit for an operation that may share its commit.
func (p *Provider) submitWrite(ctx context.Context, op func(*transaction) error, committed func()) error {
	j := &job{ctx: ctx, op: op, committed: committed, done: make(chan struct{})}
	if _, err := await(ctx, p, p.writes, j, j.done); err != nil {
		return err
	}
	return j.err
}

// waiting returns the first job and those that wait behind it.
func (p *Provider) waiting(first *job) []*job {
	group := []*job{first}
	for len(group) < maxGroup {
		select {
		case j := <-p.writes:
			group = append(group, j)
		default:
			return group
		}
	}
	return group
}

// write runs op in a transaction of its own. On errors nothing is written,
// except that a full pool is an answer like any other.
func (p *Provider) write(ctx context.Context, op func(*transaction) error) error {
	j := &job{ctx: ctx, op: op}
	p.writeAll([]*job{j})
	return j.err
}

// writeAll runs the jobs in one transaction, in order. Nobody learns how an
// operation went before all of them are on the disk.
func (p *Provider) writeAll(group []*job) {
	err := p.runGroup(group)
	for _, j := range group {
		if err != nil && !j.over {
			j.err = err
		}
		if j.err == nil && j.committed != nil {
			j.committed()
		}
		if j.done != nil {
			close(j.done)
		}
	}
}

// runGroup returns the error that meets all jobs that are not over.
func (p *Provider) runGroup(group []*job) error {
	if err := p.files.check(); err != nil {
		return explain(p.path, err)
	}
	if err := p.begin(group); err != nil {
		return explain(p.path, err)
	}
	t := &transaction{session: p.session, now: p.nowMS()}
	err := p.at(stepBegun)
	for i := 0; i < len(group) && err == nil; i++ {
		err = t.run(group[i], len(group) > 1)
	}
	if err == nil {
		err = p.at(stepWritten)
	}
	if err == nil && !t.kept {
		err = allGone(group)
	}
	if err == nil && allOver(group) {
		return explain(p.path, p.session.rollback())
	}
	if err != nil {
		return errors.Join(p.outward(err), explain(p.path, p.session.rollback()))
	}
	if _, err := p.session.exec("COMMIT"); err != nil {
		return errors.Join(explain(p.path, err), explain(p.path, p.session.rollback()))
	}
	if err := p.at(stepCommitted); err != nil {
		return err
	}
	// A file that went away before the commit has taken the grants with it.
	return explain(p.path, p.files.check())
}

// allGone returns the error of the first caller when no caller is left to hear
// that its operation was carried out: a grant that nobody uses would be committed.
func allGone(group []*job) error {
	for _, j := range group {
		if !j.over && j.ctx.Err() == nil {
			return nil
		}
	}
	for _, j := range group {
		if !j.over {
			return j.ctx.Err()
		}
	}
	return nil
}

func allOver(group []*job) bool {
	for _, j := range group {
		if !j.over {
			return false
		}
	}
	return true
}

// begin takes the file's write lock. While another process has it, jobs whose
// callers have gone leave the group; it fails when none is left.
func (p *Provider) begin(group []*job) error {
	begin := func() error {
		_, err := p.session.exec("BEGIN IMMEDIATE")
		return err
	}
	if err := begin(); !isBusy(err) {
		return err
	}
	for {
		any, cancel := context.WithCancel(context.Background())
		for _, j := range group {
			if !j.over {
				defer context.AfterFunc(j.ctx, cancel)()
			}
		}
		err := retryBusy(any, p.closing, begin)
		cancel()
		if !errors.Is(err, context.Canceled) {
			return err
		}
		for _, j := range group {
			if !j.over && j.ctx.Err() != nil {
				j.over, j.err = true, explain(p.path, lockError(j.ctx.Err()))
			}
		}
		if allOver(group) {
			return err
		}
	}
}

// run runs one job. It returns an error when the transaction is of no use any
// more. What keeps the job alone from being carried out is undone up to the
// savepoint, so that it does not take the others with it.
func (t *transaction) run(j *job, shared bool) error {
	if !j.over && j.ctx.Err() != nil {
		j.over, j.err = true, j.ctx.Err()
	}
	if j.over {
		return nil
	}
	if shared {
		if _, err := t.exec("SAVEPOINT job"); err != nil {
			return err
		}
	}
	t.keep = false
	err := j.op(t)
	t.kept = t.kept || t.keep
	if err == nil && !t.keep {
		err = j.ctx.Err()
	}
	var full *provider.FullError
	switch {
	case errors.As(err, &full):
		j.err = err // an answer, and committed
	case primaryCode(err) != 0 || errors.Is(err, errInconsistent):
		return err
	case err != nil:
		j.over, j.err = true, err
		if shared {
			if _, err := t.exec("ROLLBACK TO job"); err != nil {
				return err
			}
		}
	}
	if shared {
		_, err = t.exec("RELEASE job")
		return err
	}
	return nil
}
