package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"

	sqlitedriver "modernc.org/sqlite"
)

// Backup writes a consistent copy of the database, which may be in use, to a file that must
// not exist. The copy holds the original's secrets, and its mode is 0600. A copy that is
// restored is fenced. Operations go on meanwhile: they run between two steps of the copying.
func (f *File) Backup(ctx context.Context, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s: %w; a backup overwrites nothing", to, fs.ErrExist)
	}
	temp := fmt.Sprintf("%s.new-%08x", to, rand.Uint32())
	// Created first for its mode.
	made, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = f.copyTo(ctx, temp)
	if err == nil {
		err = made.Sync()
	}
	if err = errors.Join(err, made.Close()); err == nil {
		// A link, unlike a rename, replaces nothing.
		err = os.Link(temp, to)
	}
	return f.explain(errors.Join(err, os.Remove(temp), syncDir(filepath.Dir(to))))
}

// copying is a backup under way. The worker owns it.
type copying struct {
	*sqlitedriver.Backup
	pages       int32 // that a step copies
	left, total int   // steps until it should be complete
}

// stepPages is how many pages a step of a backup copies: about a millisecond in which no
// operation runs.
const stepPages = 256

func (f *File) copyTo(ctx context.Context, to string) error {
	stop := until(ctx, f.closing)
	c := &copying{pages: stepPages}
	_, err := inWorker(ctx, f, func() (struct{}, error) {
		err := f.ready(ctx)
		if err == nil {
			err = retryBusy(stop, func() error { return f.beginCopy(c, to) })
		}
		return struct{}{}, err
	})
	for more := true; more && err == nil; {
		more, err = inWorker(ctx, f, func() (more bool, err error) {
			err = retryBusy(stop, func() error {
				more, err = f.stepCopy(c)
				return err
			})
			return more, err
		})
	}
	if err != nil {
		// The disk may not answer: then the copy ends when it does.
		go func() {
			_, _ = inWorker(context.Background(), f, func() (struct{}, error) {
				if f.copying == c {
					_ = f.endCopy() // the caller knows why
				}
				return struct{}{}, nil
			})
		}()
	}
	return err
}

func (f *File) beginCopy(c *copying, to string) error {
	if f.copying != nil {
		return errors.New("another backup is under way")
	}
	var pages int
	if err := f.session.QueryRow("PRAGMA page_count", nil, &pages); err != nil {
		return err
	}
	c.total = pages/stepPages + 1
	c.left = c.total
	dsn := url.URL{Scheme: "file", Path: to, RawQuery: "_pragma=journal_mode(off)&_pragma=synchronous(off)"}
	err := f.session.conn.Raw(func(conn any) (err error) {
		c.Backup, err = conn.(interface {
			NewBackup(string) (*sqlitedriver.Backup, error)
		}).NewBackup(dsn.String())
		return err
	})
	if err == nil {
		f.copying = c
	}
	return err
}

// stepCopy copies some pages, and reports whether there are more. SQLite begins again after
// another process has changed the file, or a transaction was undone: then the steps become
// longer, so that the copy ends.
func (f *File) stepCopy(c *copying) (more bool, err error) {
	if f.copying != c {
		return false, errors.New("the database was opened anew while it was copied; try again")
	}
	if c.left--; c.left < 0 {
		c.pages, c.left = c.pages*2, c.total
	}
	if more, err = c.Step(c.pages); err != nil || more {
		return more, err
	}
	return false, f.endCopy()
}

// endCopy ends the backup under way, if there is one. An incomplete copy is worth nothing.
func (f *File) endCopy() error {
	c := f.copying
	if f.copying = nil; c == nil {
		return nil
	}
	return c.Finish()
}
