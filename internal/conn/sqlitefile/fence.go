package sqlitefile

import (
	"context"
	"errors"
	"fmt"
)

// Why a file is fenced. Each reason is followed by reasonEnd.
const (
	reasonCopy      = "the database is a copy, or a backup was put back in its place"
	reasonOlder     = "an older copy of the database was put back"
	reasonOther     = "another copy of the database was put back"
	reasonMixed     = "the database holds other records than were last written: it was overwritten, or put back beside a newer log"
	reasonUnknown   = "the file system does not record when a file was made, so whether this is a copy cannot be told"
	reasonWatermark = "the watermark of the database was damaged, so whether this is a copy cannot be told"
	reasonByHand    = "an operator said that the database was put back (kazahanad leases fence)"

	reasonEnd = "; what was granted since may be missing. Where nothing is missing, say so with: kazahanad leases init"
)

// errUnlike says that the file differs from what this process remembers. settle finds out
// why.
var errUnlike = errors.New("the database is not what was last written")

// expected returns errUnlike if the file's row or its main file differs from what the
// watermark and this process remember. seen must be older than row.
func (f *File) expected(row life, seen sight, seenErr error) error {
	switch {
	case errors.Is(seenErr, errDamagedWatermark):
		return errUnlike
	case seenErr != nil:
		return seenErr
	case row.Commits < f.commits:
		return errUnlike
	case f.met.watermark == nil:
		return nil
	case !seen.knows(row) || row.Commits < seen.Commits:
		return errUnlike
	}
	main, err := stampOf(f.resolved)
	if err != nil || main == seen.Main {
		return err
	}
	// Another process may be in the middle of a checkpoint: it has the lock.
	err = errUnlike
	lockErr := f.withWatermark(f.closing, func(w *watermark) error {
		seen, readErr := w.read()
		main, statErr := stampOf(f.resolved)
		if readErr == nil && statErr == nil && main == seen.Main {
			err = nil
		}
		return nil
	})
	return errors.Join(lockErr, err)
}

// remembered is the watermark's record of the file, blank without a watermark.
func (f *File) remembered() (sight, error) {
	if f.met.watermark == nil {
		return sight{}, nil
	}
	return f.met.watermark.read()
}

// withWatermark calls do with the watermark, locked against other processes, or with nil if
// there is none. It waits for the lock until closing is closed; nil: as long as it takes.
func (f *File) withWatermark(closing <-chan struct{}, do func(w *watermark) error) error {
	w := f.met.watermark
	if w == nil {
		return do(nil)
	}
	if err := w.lock(context.Background(), closing); err != nil {
		return err
	}
	return errors.Join(do(w), w.unlock())
}

// settleTries limits how often other processes may change the file during settle.
const settleTries = 16

// settle finds out, with a fresh session, whether the file is what was last written, and
// fences it if it is not.
func (f *File) settle(ctx context.Context, opening bool) error {
	for range settleTries {
		var row life
		var found verdict
		if err := retryBusy(ctx, f.closing, func() (err error) {
			row, found, err = f.look(opening)
			return err
		}); err != nil {
			return err
		}
		if found.reason == "" && !found.changed {
			f.note(row)
			return nil
		}
		if err := f.renew(ctx, row, found.reason); err != nil {
			return err
		}
		opening = false // from now on a doubt fences the file
	}
	return errors.New("others change the file all the time")
}

// verdict is the result of a look at the file.
type verdict struct {
	reason string // why the file must be fenced, or ""
	// changed says that another program has written to the main file, and that no record is
	// missing. Derived tables may still be of another time.
	changed bool
}

// look compares the file with everything that is remembered of it, and makes the watermark
// remember it.
func (f *File) look(opening bool) (row life, found verdict, err error) {
	err = f.withWatermark(f.closing, func(w *watermark) error {
		before, err := stampOf(f.resolved)
		if err != nil {
			return err
		}
		var seen sight
		if w != nil {
			if seen, err = w.read(); errors.Is(err, errDamagedWatermark) {
				seen.Life, err = doubtLost, nil
			}
			if err != nil {
				return err
			}
		}
		// Read everything from one state of the file.
		if err := f.session.ExecOnce("BEGIN"); err != nil {
			return err
		}
		row, found, err = f.judge(seen, before, opening)
		if err := errors.Join(err, f.session.rollback()); err != nil || found.reason != "" {
			return err
		}
		after, err := stampOf(f.resolved)
		if err != nil || w == nil {
			return err
		}
		if after != before {
			return errLocked // another program is overwriting it; look again
		}
		return w.changeLocked(func(s sight) sight {
			s = s.with(row)
			s.Main = after
			return s
		})
	})
	return row, found, err
}

// judge reads the row, and all records, unless the watermark has seen them all.
func (f *File) judge(seen sight, main stamp, opening bool) (row life, found verdict, err error) {
	if row, err = readLife(f.session); err != nil {
		return row, verdict{}, err
	}
	if found.reason = f.unlike(row, seen, opening); found.reason != "" || seen.knows(row) && seen.Main == main {
		return row, found, nil
	}
	digest, err := f.session.digest(f.kind)
	if err == nil && digest != row.Digest {
		found.reason = reasonMixed
	}
	found.changed = seen.knows(row) && len(f.kind.Mend) > 0
	return row, found, err
}

// unlike says why the row cannot be the one that was last written, or "".
func (f *File) unlike(row life, seen sight, opening bool) (reason string) {
	if !f.id.is(row.File) {
		return reasonCopy
	}
	switch {
	case f.met.damaged || seen.Life == doubtLost:
		return reasonWatermark
	case seen.Life == doubtUnknown, opening && !f.id.sure && seen.blank() && f.met.alone:
		return reasonUnknown
	case !seen.blank() && !seen.knows(row):
		return reasonOther
	case row.Commits < f.commits || !seen.blank() && row.Commits < seen.Commits:
		return reasonOlder
	}
	return ""
}

// renew makes the derived tables anew and, with a reason, begins a new life, which grants
// nothing until everything that may be missing has ended. It does nothing if another
// process has begun one since the row was read.
func (f *File) renew(ctx context.Context, before life, reason string) error {
	if err := retryBusy(ctx, f.closing, func() error { return f.session.ExecOnce("BEGIN IMMEDIATE") }); err != nil {
		return err
	}
	err := f.renewLocked(before, reason)
	if err != nil {
		err = errors.Join(err, f.session.rollback())
	}
	return err
}

// renewLocked is renew with the file's lock, which it releases on success.
func (f *File) renewLocked(before life, reason string) error {
	row, err := readLife(f.session)
	if err != nil {
		return err
	}
	if row.ID != before.ID || row.Commits < before.Commits {
		return f.session.rollback() // the file is not the one that was looked at
	}
	var found string
	if err := f.session.QueryRow("PRAGMA integrity_check(1)", nil, &found); err != nil {
		return err
	}
	if found != "ok" {
		return &damagedError{found}
	}
	for _, q := range f.kind.Mend {
		if err := f.session.ExecOnce(q); err != nil {
			return err
		}
	}
	seen, err := f.remembered()
	if errors.Is(err, errDamagedWatermark) {
		// The watermark's record counts, if there is one.
		seen = f.met.watermark.last
		err = f.withWatermark(f.closing, func(w *watermark) error { return w.write(seen) })
	}
	if err != nil {
		return err
	}
	if reason == "" {
		row.Commits++
	} else {
		row = f.fenced(row, seen, reason)
		row.Digest, err = f.session.digest(f.kind)
	}
	if err != nil {
		return err
	}
	if err := row.write(f.session); err != nil {
		return err
	}
	if err := f.commit(row); err != nil {
		return err
	}
	f.met.damaged = false // the row makes up for it
	return nil
}

// fenced is the row of the new life. A watermark that has seen the file's life knows the
// latest end of all grants; otherwise the longest allowed time counts.
func (f *File) fenced(row life, seen sight, reason string) life {
	now := f.nowMS()
	longest := max(row.LongestMS, f.opts.TermMS, seen.LongestMS)
	latest, commits := max(row.LatestEndMS, seen.LatestEndMS), max(row.Commits, f.commits, seen.Commits)
	if !seen.knows(row) || seen.Commits < row.Commits || reason == reasonByHand {
		longest = max(longest, f.opts.MaxTermMS)
	}
	// If the clock is behind the last commit, wait that much longer: missing grants
	// end by the clock that they were granted by.
	from := max(now, row.LastMS)
	return life{
		ID: newMark(), File: f.id, Commits: commits + 1, LastMS: from, LatestEndMS: latest, LongestMS: longest,
		Forgot: true, FenceFrom: from, FenceEnds: max(from+longest, latest), Reason: reason + reasonEnd,
	}
}

// damagedError says that SQLite's check found the file damaged. For a page that cannot be
// read at all SQLite returns SQLITE_CORRUPT instead.
type damagedError struct{ found string }

func (e *damagedError) Error() string { return fmt.Sprintf("integrity_check: %s", e.found) }

// Fence holds back grants as if the file had been restored from a backup, for restores
// that cannot be noticed.
func (f *File) Fence(ctx context.Context) (Fence, error) {
	return inWorker(ctx, f, func() (Fence, error) {
		if err := f.ready(ctx); err != nil {
			return Fence{}, err
		}
		row, err := readLife(f.session)
		if err == nil {
			err = f.renew(ctx, row, reasonByHand)
		}
		return f.Known(), err
	})
}

// Init declares that the file knows all of its grants, or that the others are not in use
// any more. It ends the fence.
func (f *File) Init(ctx context.Context) error {
	return f.Write(ctx, func(t *Tx) error {
		if !t.life.Trusted || t.life.FenceEnds != 0 {
			t.life.Trusted, t.life.FenceFrom, t.life.FenceEnds, t.life.Reason = true, 0, 0, ""
			t.dirty = true
		}
		return nil
	}, nil)
}

// Look reads the file, so that Known is up to date.
func (f *File) Look(ctx context.Context) error {
	_, err := Read(ctx, f, func(*Session) (struct{}, error) { return struct{}{}, nil })
	return err
}

// Known is the fence as this process saw it last. It does no I/O.
func (f *File) Known() Fence {
	if known := f.known.Load(); known != nil {
		return *known
	}
	return Fence{}
}

// note remembers the file's row for Known.
func (f *File) note(row life) {
	f.commits = max(f.commits, row.Commits)
	fence := row.fence()
	f.known.Store(&fence)
}
