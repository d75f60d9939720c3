package sqlitefile

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// Tx is a write under way: the file's lock is held, and nothing is durable
// before the commit. An operation neither begins nor commits, so that several
// can share one commit.
type Tx struct {
	*Session
	NowMS int64 // the clock in Unix ms, read once, under the lock

	life  life // the file's row, which the commit writes
	dirty bool // it was changed
}

// Grants notes that something is granted until endMS: if the file is put back, its fence
// lasts at least as long.
func (t *Tx) Grants(endMS int64) {
	t.life.LatestEndMS, t.life.LongestMS = max(t.life.LatestEndMS, endMS), max(t.life.LongestMS, endMS-t.NowMS)
}

// job is one operation that waits for its commit. See the package's page on sharing.
type job struct {
	ctx context.Context
	op  func(*Tx) error

	taken atomic.Bool // by the worker that runs op, or by the caller that waits no longer: the first decides

	err  error
	over bool          // err is final: the operation is in no commit
	done chan struct{} // closed when err is final; nil if no caller waits
}

// Write runs op in a transaction, which it may share with others, and returns when that is
// on the disk; the package documentation says how errors end it. If ctx ends or the file is
// closed first, op may still run or be running: its effect is unknown, unless the error wraps
// connurl.ErrNotSent: then op has not run, and will not. Where the disk was full and has room
// again, op runs a second time.
func (f *File) Write(ctx context.Context, op func(*Tx) error) error {
	j := &job{ctx: ctx, op: op, done: make(chan struct{})}
	if _, err := await(ctx, f, f.writes, j, j.done); err != nil {
		if j.taken.CompareAndSwap(false, true) {
			return connurl.NotSent(err)
		}
		return err
	}
	return j.err
}

// maxGroup is how many operations may share a commit: enough to divide the cost of the sync, and
// few enough that the first need not wait long.
const maxGroup = 256

// waiting returns the first job of the queue and the jobs that wait behind it.
func waiting(queue <-chan *job, first *job) []*job {
	group := []*job{first}
	for len(group) < maxGroup {
		select {
		case j := <-queue:
			group = append(group, j)
		default:
			return group
		}
	}
	return group
}

// writeAll runs the jobs in one transaction, in order. Callers get their results only when
// all jobs are on the disk.
func (f *File) writeAll(group []*job) {
	err := f.runGroup(group)
	if primaryCode(err) == sqlite3.SQLITE_FULL && f.hasMoreRoom() { // the transaction was undone
		left := slices.DeleteFunc(slices.Clone(group), func(j *job) bool { return j.over })
		for _, j := range left {
			j.taken.Store(false) // a caller that leaves now may say that its operation has not run
		}
		err = f.runGroup(left)
	}
	for _, j := range group {
		if err != nil && !j.over {
			j.err = err
		}
		if j.done != nil {
			close(j.done)
		}
	}
}

// runGroup returns the error of all jobs that are not over.
func (f *File) runGroup(group []*job) error {
	// The group waits for another process while one of its callers does.
	stop := func() error { return cmp.Or(until(context.Background(), f.closing)(), allGone(group)) }
	row, err := f.begin(context.Background(), "BEGIN IMMEDIATE", stop)
	if err != nil {
		return connurl.NotSent(f.explain(err))
	}
	f.session.changes.reset()
	t := &Tx{Session: f.session, NowMS: f.NowMS(), life: row}
	t.dirty = t.life.admit(f.opts.TermMS) // which is committed also if all operations are refused
	if err := f.opts.At(StepBegun); err != nil {
		return connurl.NotSent(errors.Join(f.outward(err), f.explain(f.session.rollback())))
	}
	for i := 0; i < len(group) && err == nil; i++ {
		err = t.run(group[i], len(group) > 1 || t.dirty)
	}
	if err == nil {
		err = f.opts.At(StepWritten)
	}
	if err == nil {
		err = allGone(group)
	}
	if err == nil && allOver(group) && !t.dirty {
		return f.explain(f.session.rollback())
	}
	if err == nil {
		err = f.finish(t, stop)
	}
	if err != nil {
		return errors.Join(f.outward(err), f.explain(f.session.rollback()))
	}
	if err := f.opts.At(StepWatermarked); err != nil {
		return err
	}
	// A file that went away before the commit has taken the operations with it.
	return f.explain(f.files.check())
}

// finish commits the transaction, together with the file's row.
func (f *File) finish(t *Tx, stop func() error) error {
	c := &f.session.changes
	if c.err != nil {
		return c.err
	}
	if !c.touched && !t.dirty {
		return errors.Join(f.session.rollback(), f.opts.At(StepCommitted))
	}
	row := t.life
	row.Commits++
	row.Digest += c.delta
	row.LastMS = max(row.LastMS, t.NowMS)
	if err := row.write(f.session); err != nil {
		return err
	}
	return f.commit(stop, row)
}

// commit commits the row, and makes the watermark remember it before any caller gets a
// result. Readers in other processes can be in the way of a commit: it is tried again until
// stop says otherwise.
func (f *File) commit(stop func() error, row life) error {
	if err := f.watermark.change(f.closing, func(s sight) sight {
		s.Next = row.point()
		return s
	}); err != nil {
		return err
	}
	if err := retryBusy(stop, func() error {
		_, err := f.session.Exec("COMMIT")
		return err
	}); err != nil {
		return err
	}
	if err := f.opts.At(StepCommitted); err != nil {
		return err
	}
	f.note(row)
	if f.watermark == nil {
		return nil
	}
	if !f.kind.Owned { // a commit to a log leaves the main file as it is
		var err error
		if f.stamp, err = stampOf(f.resolved); err != nil {
			return cmp.Or(f.files.check(), err)
		}
	}
	return f.raise(row, f.stamp)
}

// outward adds the path to errors of the database, and leaves answers to the
// caller as they are.
func (f *File) outward(err error) error {
	if primaryCode(err) != 0 || errors.Is(err, ErrMoved) {
		return f.explain(err)
	}
	return err
}

// allGone returns the error of a caller if all callers have gone: their operations should
// not be committed.
func allGone(group []*job) (err error) {
	for _, j := range group {
		if err = j.ctx.Err(); err == nil {
			return nil
		}
	}
	return err
}

func allOver(group []*job) bool {
	return !slices.ContainsFunc(group, func(j *job) bool { return !j.over })
}

// verifyTries limits how often other programs may write to the file while it is verified.
const verifyTries = 3

// begin begins a transaction, and returns the file's row. If the file is not as expected, it
// is verified first, which may fence it.
func (f *File) begin(ctx context.Context, how string, stop func() error) (row life, err error) {
	for try := 0; ; try++ {
		if err = f.ready(ctx); err != nil {
			return row, err
		}
		err = retryBusy(stop, func() (err error) {
			if _, err = f.session.Exec(how); err == nil {
				if row, err = f.look(); err != nil {
					err = errors.Join(err, f.session.rollback())
				}
			}
			return err
		})
		if !errors.Is(err, errUnlike) || try == verifyTries {
			return row, err
		}
		// The pages that the session has in memory must not be used.
		if err := f.closeSession(); err != nil {
			return row, err
		}
	}
}

// run runs one job. It returns an error if the whole transaction has failed. A failure of
// the job alone is undone up to the savepoint, so that the others can go on.
func (t *Tx) run(j *job, shared bool) error {
	if j.ctx.Err() != nil || !j.taken.CompareAndSwap(false, true) {
		j.over, j.err = true, connurl.NotSent(j.ctx.Err())
		return nil
	}
	before, delta := t.life, t.Session.changes.delta
	if shared {
		if _, err := t.Exec("SAVEPOINT job"); err != nil {
			return err
		}
	}
	err := j.op(t)
	if err == nil {
		err = j.ctx.Err()
	}
	switch {
	case primaryCode(err) != 0:
		return err
	case err != nil:
		j.over, j.err = true, err
		if shared {
			if _, err := t.Exec("ROLLBACK TO job"); err != nil {
				return err
			}
			t.life, t.Session.changes.delta = before, delta // as the tables are again
		}
	}
	if shared {
		_, err = t.Exec("RELEASE job")
		return err
	}
	return nil
}
