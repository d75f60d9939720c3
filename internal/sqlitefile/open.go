package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Options are how a file is used.
type Options struct {
	// NowMS is the clock that transactions read, in Unix ms; nil means the wall
	// clock.
	NowMS func() int64
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
	StepCommitted = "committed" // on disk, the caller does not know yet
)

// File is an open database. Its methods may be called by many goroutines.
type File struct {
	kind  *Kind
	path  string
	nowMS func() int64
	at    func(step string) error

	// Owned by the worker goroutine from Open on.
	session *Session
	files   watch

	tasks     chan func() // one at a time, in order of arrival
	writes    chan *job   // operations that may share a commit
	closeOnce sync.Once
	closing   chan struct{} // closed by Close
	stopped   chan struct{} // closed when the worker has ended
	closeErr  error         // what closing the file said; read after stopped
}

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
// lock until ctx ends.
func Open(ctx context.Context, path string, kind *Kind, opts Options) (*File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("sqlite:%s: the path must be absolute", path)
	}
	f := &File{
		kind: kind, path: path, nowMS: opts.NowMS, at: opts.At,
		tasks: make(chan func()), writes: make(chan *job), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	if f.nowMS == nil {
		f.nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	if f.at == nil {
		f.at = func(string) error { return nil }
	}
	if err := f.open(ctx, opts.Check); err != nil {
		return nil, f.explain(err)
	}
	go f.work()
	return f, nil
}

func (f *File) open(ctx context.Context, check func(*Session) error) error {
	if err := f.kind.prepareFile(ctx, f.path); err != nil {
		return err
	}
	before, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	resolved, err := filepath.EvalSymlinks(f.path)
	if err != nil {
		return err
	}
	if f.session, err = Connect(ctx, resolved); err != nil {
		return err
	}
	if err := f.check(ctx, before, resolved, check); err != nil {
		return errors.Join(err, f.session.Close())
	}
	return nil
}

// check makes sure that the connection can be used.
func (f *File) check(ctx context.Context, before os.FileInfo, resolved string, more func(*Session) error) error {
	s := f.session
	for _, pragma := range []string{"PRAGMA synchronous=FULL", "PRAGMA journal_size_limit=4194304", "PRAGMA trusted_schema=OFF"} {
		if err := retryBusy(ctx, nil, func() error { return s.ExecOnce(pragma) }); err != nil {
			return err
		}
	}
	if err := retryBusy(ctx, nil, func() error { return f.kind.check(ctx, s, resolved) }); err != nil {
		return err
	}
	var err error
	if f.files, err = watchFiles(f.path, resolved); err != nil {
		return err
	}
	if !os.SameFile(before, f.files.files[0]) {
		return ErrMoved
	}
	if more == nil {
		return nil
	}
	return retryBusy(ctx, nil, func() error { return more(s) })
}

// Close waits for the operation under way. Those that wait fail with ErrClosed.
func (f *File) Close() error {
	f.closeOnce.Do(func() { close(f.closing) })
	<-f.stopped
	return f.closeErr
}

// NowMS is the clock that transactions read, in Unix ms.
func (f *File) NowMS() int64 { return f.nowMS() }

func (f *File) explain(err error) error { return f.kind.explain(f.path, err) }
