package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// Why a file is fenced. Each reason is followed by reasonEnd. AREA stands for the kind's.
const (
	reasonCopy    = "the database is a copy, or a backup was put back in its place"
	reasonOlder   = "an older copy of the database was put back"
	reasonOther   = "another copy of the database was put back"
	reasonMixed   = "the database holds other records than were last written: it was overwritten, or put back beside a newer log"
	reasonUnknown = "the file system does not record when a file was made, so whether this is a copy cannot be told"
	reasonByHand  = "an operator said that the database was put back (kazahanad AREA fence)"

	reasonEnd = "; what was granted since may be missing. Where nothing is missing, say so with: kazahanad AREA init"
)

// errUnlike says that the file is not as this process or the watermark remembers it. verify
// finds out why.
var errUnlike = errors.New("the database is not what was last written")

// look returns the file's row at the beginning of a transaction. errUnlike says that the file
// must be verified first. Where the process that wrote the row has not raised the watermark
// yet, this one does so: what rests on the row may be answered.
func (f *File) look() (row life, err error) {
	if err := f.kind.current(f.session); err != nil {
		return row, err
	}
	if row, err = readLife(f.session); err != nil {
		return row, err
	}
	if !f.id.is(row.File) || row.Commits < f.commits {
		return row, errUnlike
	}
	if f.watermark != nil {
		seen, err := f.watermark.read(f.closing)
		if err != nil {
			return row, err
		}
		main, err := stampOf(f.resolved)
		if err != nil {
			return row, err
		}
		// Only a commit to a journal changes the main file.
		late := row.point() == seen.Next && row.point() != seen.Done
		switch {
		case late && (!f.kind.Owned || main == seen.Main):
			if err := f.raise(row, main); err != nil {
				return row, err
			}
		case row.point() != seen.Done || main != seen.Main:
			return row, errUnlike
		}
		f.stamp = main
	}
	f.note(row)
	return row, nil
}

// raise makes the watermark remember a commit.
func (f *File) raise(row life, main stamp) error {
	return f.watermark.change(f.closing, func(s sight) sight { return s.done(row, main) })
}

// verify finds out, by a session that has no pages of before, whether the file is as it
// was last written. If it is not, verify begins a new life.
func (f *File) verify(ctx context.Context, opening bool) error {
	stop := until(ctx, f.closing)
	if err := retryBusy(stop, func() error { return f.session.ExecOnce("BEGIN IMMEDIATE") }); err != nil {
		return err
	}
	if err := f.verifyLocked(stop, opening); err != nil {
		return errors.Join(err, f.session.rollback())
	}
	return nil
}

// verifyLocked is verify with the file's write lock. It ends the transaction, unless it fails.
func (f *File) verifyLocked(stop func() error, opening bool) error {
	row, err := readLife(f.session)
	if err != nil {
		return err
	}
	seen, err := f.watermark.read(f.closing)
	if err != nil {
		return err
	}
	// Before the records are read: a file that is overwritten meanwhile differs later.
	main, err := stampOf(f.resolved)
	if err != nil {
		return err
	}
	reason := f.unlike(row, seen, opening)
	if reason == "" {
		digest, err := f.session.digest(f.kind)
		if err != nil {
			return err
		}
		if digest != row.Digest {
			reason = reasonMixed
		}
	}
	f.stamp = main
	if reason != "" {
		return f.renew(stop, row, seen, reason)
	}
	if err := f.raise(row, main); err != nil {
		return err
	}
	f.note(row)
	return f.session.rollback()
}

// unlike says why the row cannot be the last one written, or "".
func (f *File) unlike(row life, seen sight, opening bool) (reason string) {
	switch {
	case !f.id.is(row.File):
		return reasonCopy
	case seen.blank() && opening && !f.id.sure:
		return reasonUnknown
	case !seen.blank() && row.ID != seen.Done.Life && row.point() != seen.Next:
		return reasonOther
	case row.Commits < max(f.commits, seen.Done.Commits):
		return reasonOlder
	}
	return ""
}

// renew begins a new life, which grants nothing until everything that may be missing has ended.
// It holds the file's lock, and commits.
func (f *File) renew(stop func() error, row life, seen sight, reason string) error {
	var found string
	if err := f.session.QueryRow("PRAGMA integrity_check(1)", nil, &found); err != nil {
		return err
	}
	if found != "ok" {
		return fmt.Errorf("%w: integrity_check: %s", errDamaged, found)
	}
	row = f.fenced(row, seen, reason)
	var err error
	if row.Digest, err = f.session.digest(f.kind); err != nil {
		return err
	}
	if err := row.write(f.session); err != nil {
		return err
	}
	return f.commit(stop, row)
}

// fenced is the row of the new life. A watermark that has seen the file's life knows the
// latest end of all grants; otherwise the longest allowed time counts.
func (f *File) fenced(row life, seen sight, reason string) life {
	now := f.NowMS()
	longest := max(row.LongestMS, f.opts.TermMS, seen.LongestMS)
	latest, commits := max(row.LatestEndMS, seen.LatestEndMS), max(row.Commits, f.commits, seen.Done.Commits, seen.Next.Commits)
	if !seen.knows(row) || seen.Done.Commits < row.Commits || reason == reasonByHand {
		longest = max(longest, f.opts.MaxTermMS)
	}
	// If the clock is behind the last commit, wait that much longer: missing grants
	// end by the clock that they were granted by.
	from := max(now, row.LastMS)
	return life{
		ID: uuid.New(), File: f.id, Commits: commits + 1, LastMS: from, LatestEndMS: latest, LongestMS: longest,
		Forgot: true, FenceFrom: from, FenceEnds: max(from+longest, latest), Reason: strings.ReplaceAll(reason+reasonEnd, "AREA", f.kind.Area),
	}
}

// Fence holds back grants as if the file had been restored from a backup, for restores
// that cannot be noticed.
func (f *File) Fence(ctx context.Context) (Fence, error) {
	return inWorker(ctx, f, func() (Fence, error) {
		stop := until(ctx, f.closing)
		row, err := f.begin(ctx, "BEGIN IMMEDIATE", stop)
		if err != nil {
			return Fence{}, f.explain(err)
		}
		seen, err := f.watermark.read(f.closing)
		if err == nil {
			err = f.renew(stop, row, seen, reasonByHand)
		}
		if err != nil {
			err = errors.Join(err, f.session.rollback())
		}
		return f.Known(), f.explain(err)
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
	})
}

// Peek reads a file's fence without using the file, and whether it is a copy, which will be
// fenced at its first use.
func Peek(ctx context.Context, path string) (fence Fence, isCopy bool, err error) {
	err = ReadOnly(ctx, path, func(s *Session) error {
		row, err := readLife(s)
		if err != nil {
			return err
		}
		id, err := identityOf(path)
		fence, isCopy = row.fence(), !id.is(row.File)
		return err
	})
	return fence, isCopy, err
}

// Known is the fence as this process saw it last. It does no I/O.
func (f *File) Known() Fence {
	if known := f.known.Load(); known != nil {
		return *known
	}
	return Fence{}
}

// note remembers the file's row. The fence lasts as long as this process's own grants require:
// the next write records that.
func (f *File) note(row life) {
	f.commits = max(f.commits, row.Commits)
	row.admit(f.opts.TermMS)
	fence := row.fence()
	f.known.Store(&fence)
	f.session.fence, f.session.lastMS = fence, row.LastMS
}
