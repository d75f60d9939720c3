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

// Options say how a file is used.
type Options struct {
	// NowMS is the clock that transactions read, in Unix ms; nil: the wall clock.
	NowMS func() int64
	// LiveDir is the directory of the file's watermark, on a file system in memory. Without
	// one, the file shares the watermark of other processes that have it open, or has none.
	LiveDir string
	// TermMS is the longest term that this process grants, and MaxTermMS the longest that
	// any process can grant; 0 if there is no such limit, as with leases. A fence lasts at
	// least for the longest term known of the file, for TermMS, and, if no watermark knows
	// better, for MaxTermMS.
	TermMS, MaxTermMS int64
	// At is called at each step of a transaction, which fails with its error. Only tests
	// set it.
	At func(step string) error
}

// The steps of a write for Options.At.
const (
	StepBegun       = "begun"       // the lock is held, nothing is written
	StepWritten     = "written"     // everything is written, nothing is committed
	StepCommitted   = "committed"   // on the disk; neither the watermark nor the caller knows yet
	StepWatermarked = "watermarked" // the caller does not know yet
)

// File is an open database. It is safe for concurrent use.
type File struct {
	kind *Kind
	path string
	opts Options // without nil functions

	// The worker goroutine owns these from Open on.
	resolved  string   // path without symbolic links
	id        identity // of the file at resolved
	place     *place
	watermark *watermark // nil: none
	stamp     stamp      // of the main file in the present transaction, with a watermark
	main      *handle
	session   *Session // nil: the database could not be opened again
	copying   *copying // nil: no backup is under way
	// allocated is how long the main file can become without new room on the disk.
	allocated int64
	files     watch
	commits   int64 // the largest number seen in the file's row
	unasked   int   // operations since maintain looked

	known     atomic.Pointer[Fence]
	tasks     chan func() // run one at a time
	writes    chan *job   // may share a commit
	closeOnce sync.Once
	closing   chan struct{} // closed by Close
	stopped   chan struct{} // closed when the worker has ended
	closeErr  error         // of closing the file; read after stopped
}

// Scheme is the scheme of a file's URL.
const Scheme = "sqlite"

// ParseURL splits sqlite:PATH?QUERY. The error never repeats a part of the URL that may
// hold a secret. example is as in PathOf.
func ParseURL(rawURL, example string) (path, query string, err error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != Scheme || u.Fragment != "" || u.User != nil {
		return "", "", errors.New("the URL sqlite:... is malformed: special characters in the path must be percent-encoded")
	}
	path, err = PathOf(u, example)
	return path, u.RawQuery, err
}

// URL is the inverse of ParseURL.
func URL(path string) string { return Scheme + ":" + (&url.URL{Path: path}).EscapedPath() }

// PathOf returns the path in sqlite:PATH; errors show example. A relative path is an error:
// it would name another file as soon as a daemon is started in another directory.
func PathOf(u *url.URL, example string) (string, error) {
	if u.Host != "" || u.Opaque != "" {
		return "", fmt.Errorf("sqlite:%s is a relative path, which means another file in another working directory; write an absolute one, for example sqlite:%s",
			u.Host+u.Path+u.Opaque, example)
	}
	if u.Path == "" || u.Path == "/" {
		return "", errors.New("sqlite: needs the path of a file, for example sqlite:" + example)
	}
	return filepath.Clean(u.Path), nil
}

// Open opens the file at the absolute path, and creates it and its directory if they do
// not exist. While other processes hold the file's lock it waits until ctx ends. No context
// ends a system call: where a disk may hang, call it in package lazy.
func Open(ctx context.Context, path string, kind *Kind, opts Options) (*File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("sqlite:%s: the path must be absolute", path)
	}
	f := &File{
		kind: kind, path: path, opts: opts,
		tasks: make(chan func()), writes: make(chan *job), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	if opts.NowMS == nil {
		f.opts.NowMS = func() int64 { return time.Now().UnixMilli() }
	}
	if opts.At == nil {
		f.opts.At = func(string) error { return nil }
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
	if f.place, f.watermark, err = openPlace(ctx, f.resolved, f.id, f.opts.LiveDir, f.kind.Owned); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.leave())
		}
	}()
	if f.main, err = openHandle(f.resolved); err != nil {
		return err
	}
	// The main file by its configured name, where a symbolic link may change; the log is beside the
	// file that it led to.
	f.files = watch{{f.path, before}, f.place.watched}
	if err := f.connect(ctx, true); err != nil {
		return err
	}
	f.reserve()
	return nil
}

// connect opens a session, and checks the file by it.
func (f *File) connect(ctx context.Context, opening bool) (err error) {
	f.allocated = 0
	if f.session, err = Connect(ctx, f.resolved); err != nil {
		return err
	}
	if err = f.check(ctx); err == nil {
		err = f.verify(ctx, opening)
	}
	if err != nil {
		err = errors.Join(err, f.closeSession())
	}
	return err
}

// check prepares the session, and returns an error if it cannot be used.
func (f *File) check(ctx context.Context) error {
	s, stop := f.session, until(ctx, f.closing)
	pragmas := []string{
		"PRAGMA locking_mode=EXCLUSIVE", // first: it keeps the log's index out of a mapped file
		"PRAGMA synchronous=FULL", fmt.Sprintf("PRAGMA journal_size_limit=%d", logRoom), "PRAGMA trusted_schema=OFF",
		"PRAGMA cache_spill=OFF",      // the main file changes at a commit only
		"PRAGMA wal_autocheckpoint=0", // see File.maintain
	}
	if !f.kind.Owned {
		pragmas = pragmas[1:]
	}
	for _, pragma := range pragmas {
		if err := retryBusy(stop, func() error { return s.ExecOnce(pragma) }); err != nil {
			return err
		}
	}
	if err := retryBusy(stop, func() error { return f.kind.check(s) }); err != nil {
		return err
	}
	if f.kind.Owned {
		if err := f.files.add(f.resolved + "-wal"); err != nil {
			return err
		}
	}
	if err := f.files.check(); err != nil {
		return err
	}
	return s.watchRows(f.kind)
}

// ready makes sure that there is a session: it opens a new one in place of an abandoned one.
func (f *File) ready(ctx context.Context) error {
	if err := f.files.check(); err != nil || f.session != nil {
		return err
	}
	return f.connect(ctx, false)
}

// closeSession ends the session, which writes a log into the main file.
func (f *File) closeSession() error {
	if f.session == nil {
		return nil
	}
	_ = f.endCopy() // its caller is told
	err := f.session.Close()
	f.session = nil
	f.files = f.files[:2] // there is no log any more
	if info, statErr := f.main.Stat(); statErr == nil && f.kind.Owned {
		f.allocateMain(info.Size()) // which the end of the log has cut off
	}
	return err
}

// writingMain calls do, which changes the main file or its times, and not its content, and has
// the watermark know it as it then is. If others have written to the main file before, all
// records are read at the next transaction.
func (f *File) writingMain(do func()) {
	before, beforeErr := stampOf(f.resolved)
	do()
	after, afterErr := stampOf(f.resolved)
	_ = f.watermark.change(f.closing, func(s sight) sight {
		if beforeErr == nil && afterErr == nil && s.Main == before {
			s.Main = after
		}
		return s
	}) // a failure is noticed at the next transaction
}

// leave closes everything.
func (f *File) leave() error {
	err := errors.Join(f.closeSession(), f.main.close())
	return errors.Join(err, f.watermark.close(), f.place.close())
}

// closeWait is how long Close waits for a disk that does not answer.
const closeWait = 5 * time.Second

// Close waits for the running operation; the waiting ones fail with ErrClosed. If the disk
// does not answer, Close returns an error after closeWait, and the file is closed once the
// disk answers.
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

// Socket is where the process that owns the file takes requests of others, which an OwnedError
// names; "" if it has no watermark.
func (f *File) Socket() string {
	if !f.kind.Owned || f.watermark == nil {
		return ""
	}
	return f.watermark.path + socketSuffix
}

// NowMS is the clock that transactions read, in Unix ms.
func (f *File) NowMS() int64 { return f.opts.NowMS() }

func (f *File) explain(err error) error { return f.kind.explain(f.path, err) }
