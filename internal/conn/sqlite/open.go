package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Options are how a file is used.
type Options struct {
	// NowMS is the clock that transactions read, in Unix ms; nil means the wall
	// clock.
	NowMS func() int64
	// LiveDir is a directory on a file system in memory, where the file's witness
	// is. Without one, the file has the witness of those who have it open, or none.
	LiveDir string
	// TermMS is the longest that anything granted by this process lasts, and
	// MaxTermMS the longest that anything can last. A file that may have forgotten
	// something is fenced for at least the longest that is known of it, for TermMS,
	// and, where no witness knows better, for MaxTermMS. Leases have no such maximum:
	// their fence without a witness goes by the file and by TermMS.
	TermMS, MaxTermMS int64
	// Check is called once the file is known to be one of its kind, and may
	// refuse it. It may be called again where another process holds a lock.
	Check func(*Session) error
	// At is called at the named steps of each transaction, which fails with its
	// error. Only tests set it: there a process ends itself.
	At func(step string) error
}

// The steps of a write that Options.At is told of.
const (
	StepBegun     = "begun"     // holds the lock, nothing written
	StepWritten   = "written"   // everything written, nothing committed
	StepCommitted = "committed" // on disk, neither the witness nor the caller knows yet
	StepWitnessed = "witnessed" // the caller does not know yet
)

// File is an open database. Its methods may be called by many goroutines.
type File struct {
	kind  *Kind
	path  string
	opts  Options
	nowMS func() int64
	at    func(step string) error

	// Owned by the worker goroutine from Open on.
	resolved string   // path without symbolic links
	id       identity // of the file at resolved
	met      *met
	session  *Session // nil: it could not be opened again
	files    watch
	commits  int64 // the most that the file's row was seen to have
	unasked  int   // operations since the length of the log was asked for

	known     atomic.Pointer[Fence]
	tasks     chan func() // one at a time, in order of arrival
	writes    chan *job   // operations that may share a commit
	closeOnce sync.Once
	closing   chan struct{} // closed by Close
	stopped   chan struct{} // closed when the worker has ended
	closeErr  error         // what closing the file said; read after stopped
}

// Scheme begins the URLs that name a file.
const Scheme = "sqlite"

// ParseURL reads sqlite:PATH: the file, and what follows a '?'. The error never
// repeats a part of the URL that may hold a secret. example is as in PathOf.
func ParseURL(rawURL, example string) (path, query string, err error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != Scheme || u.Fragment != "" || u.User != nil {
		return "", "", errors.New("the URL sqlite:... is malformed: special characters in the path must be percent-encoded")
	}
	path, err = PathOf(u, example)
	return path, u.RawQuery, err
}

// URL names the file as ParseURL reads it.
func URL(path string) string { return Scheme + ":" + (&url.URL{Path: path}).EscapedPath() }

// PathOf is the file that sqlite:PATH names; example is one that could be meant.
// A relative path would name another file as soon as a daemon is started from
// another directory, and is an error.
func PathOf(u *url.URL, example string) (string, error) {
	path := u.Path
	if u.Host != "" || u.Opaque != "" {
		relative, err := url.PathUnescape(u.Opaque)
		if err != nil {
			return "", fmt.Errorf("sqlite:%s: the path has a '%%' that is not followed by two hex digits", u.Opaque)
		}
		relative = filepath.Join(u.Host, u.Path, relative)
		absolute, err := filepath.Abs(relative)
		if err != nil {
			absolute = "/" + relative
		}
		return "", fmt.Errorf("sqlite:%s is a relative path, which means another file in another working directory; write sqlite:%s",
			relative, absolute)
	}
	if path == "" || path == "/" {
		return "", errors.New("sqlite: needs the path of a file, for example sqlite:" + example)
	}
	return filepath.Clean(path), nil
}

// Open opens the file at the absolute path, and creates it with its directory
// where it does not exist. It waits for other processes that hold the file's
// lock until ctx ends. Only package onuse calls it where a disk may hang: no
// context ends a system call.
func Open(ctx context.Context, path string, kind *Kind, opts Options) (*File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("sqlite:%s: the path must be absolute", path)
	}
	f := &File{
		kind: kind, path: path, opts: opts, nowMS: opts.NowMS, at: opts.At,
		tasks: make(chan func()), writes: make(chan *job), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	if f.nowMS == nil {
		f.nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	if f.at == nil {
		f.at = func(string) error { return nil }
	}
	if err := f.open(ctx); err != nil {
		return nil, f.explain(err)
	}
	go f.work()
	return f, nil
}

func (f *File) open(ctx context.Context) (err error) {
	if err := f.kind.prepareFile(ctx, f.path); err != nil {
		return err
	}
	before, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if f.resolved, err = filepath.EvalSymlinks(f.path); err != nil {
		return err
	}
	if f.id, err = identityOf(f.resolved); err != nil {
		return err
	}
	if f.met, err = meet(ctx, f.resolved, f.opts.LiveDir, f.id); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.leave())
		}
	}()
	if err := f.connect(ctx, before); err != nil {
		return err
	}
	return f.settle(ctx, true)
}

// connect opens a session on the file that before describes, and makes sure that
// it can be used.
func (f *File) connect(ctx context.Context, before os.FileInfo) (err error) {
	if f.session, err = Connect(ctx, f.resolved); err != nil {
		return err
	}
	if err := f.check(ctx, before); err != nil {
		err = errors.Join(err, f.session.Close())
		f.session = nil
		return err
	}
	return nil
}

// check makes sure that the session can be used.
func (f *File) check(ctx context.Context, before os.FileInfo) error {
	s := f.session
	for _, pragma := range []string{
		"PRAGMA synchronous=FULL", "PRAGMA journal_size_limit=4194304", "PRAGMA trusted_schema=OFF",
		"PRAGMA wal_autocheckpoint=0", // see File.checkpoint
	} {
		if err := f.retry(ctx, func() error { return s.ExecOnce(pragma) }); err != nil {
			return err
		}
	}
	if err := f.retry(ctx, func() error { return f.kind.check(s) }); err != nil {
		return err
	}
	files, err := watchFiles(f.path, f.resolved)
	if err != nil {
		return err
	}
	if !os.SameFile(before, files.files[0]) {
		return ErrMoved
	}
	f.files = files
	if err := s.watchRows(f.kind.Loose); err != nil || f.opts.Check == nil {
		return err
	}
	return f.retry(ctx, func() error { return f.opts.Check(s) })
}

func (f *File) retry(ctx context.Context, do func() error) error {
	return retryBusy(ctx, f.closing, do)
}

// ready makes sure that there is a session: one that was given up is opened again,
// as soon as the file can be used.
func (f *File) ready(ctx context.Context) error {
	if f.session != nil {
		return f.moved()
	}
	if err := f.met.there(); err != nil {
		return err
	}
	if err := f.connect(ctx, f.files.files[0]); err != nil {
		return err
	}
	return f.settle(ctx, false)
}

// reopen is for a file that is not what this process knows of it: what the session
// has of it in memory must not be used.
func (f *File) reopen(ctx context.Context) error {
	if err := f.closeSession(f.closing); err != nil {
		return err
	}
	return f.ready(ctx)
}

// moved reports that one of the file's names means another file, or none.
func (f *File) moved() error {
	if err := f.files.check(); err != nil {
		return err
	}
	return f.met.there()
}

// closeSession ends the session. The last one of all processes writes the log
// into the main file. Where another process has the witness, closeSession waits as
// withWitness does; the session is open still if it waited in vain.
func (f *File) closeSession(closing <-chan struct{}) error {
	if f.session == nil {
		return nil
	}
	return f.writingMain(closing, func() error {
		err := f.session.Close()
		f.session = nil
		return err
	})
}

// writingMain has do write to the main file, and the witness remember what it is
// then. A main file that others have written to before stays unknown: it is looked
// through the next time.
func (f *File) writingMain(closing <-chan struct{}, do func() error) error {
	return f.withWitness(closing, func(w *witness) error {
		if w == nil {
			return do()
		}
		before, beforeErr := stampOf(f.resolved)
		err := do()
		after, afterErr := stampOf(f.resolved)
		changed := w.changeLocked(func(s sight) sight {
			if beforeErr == nil && afterErr == nil && s.Main == before {
				s.Main = after
			} else {
				s.Main = stamp{}
			}
			return s
		})
		return errors.Join(err, ignoring(changed, errDamagedWitness)) // which is seen at the next look
	})
}

// leave closes everything.
func (f *File) leave() error {
	err := f.closeSession(nil) // f.closing is closed; the witness is held for moments only
	if f.met.witness != nil {
		err = errors.Join(err, f.met.witness.close())
	}
	return errors.Join(err, f.met.close())
}

// closeWait is how long Close waits for a disk that does not answer.
const closeWait = time.Second

// Close waits for the operation under way. Those that wait fail with ErrClosed.
// Where the disk does not answer, it waits for closeWait and returns an error:
// the file is then closed once the disk answers.
func (f *File) Close() error {
	f.closeOnce.Do(func() { close(f.closing) })
	wait := time.NewTimer(closeWait)
	defer wait.Stop()
	select {
	case <-f.stopped:
		return f.closeErr
	case <-wait.C:
		return f.explain(errors.New("the disk does not answer; the file is closed once it does"))
	}
}

// NowMS is the clock that transactions read, in Unix ms.
func (f *File) NowMS() int64 { return f.nowMS() }

func (f *File) explain(err error) error { return f.kind.explain(f.path, err) }
