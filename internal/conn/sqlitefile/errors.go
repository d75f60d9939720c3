package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	sqlitedriver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// The errors of this package that callers may want to tell apart.
var (
	// ErrMoved says that the database file was deleted, moved or replaced while open.
	ErrMoved = errors.New("the database file was deleted, moved or replaced while in use; nothing more is done with it")
	// ErrClosed says that this process has closed the file.
	ErrClosed = errors.New("the database is closed")
)

// Waiting for another process's write lock, which lasts as long as a commit:
// some milliseconds.
const (
	firstBusyWait = 500 * time.Microsecond
	maxBusyWait   = 8 * time.Millisecond
)

// retryBusy calls f until it ends with anything but another process's lock, or stop returns
// an error. SQLite's own busy handler knows nothing of stop.
func retryBusy(stop func() error, f func() error) error {
	for wait := firstBusyWait; ; wait = min(wait*2, maxBusyWait) {
		err := f()
		if !Busy(err) {
			return err
		}
		if stopped := stop(); stopped != nil {
			return lockError(stopped)
		}
		// Half fixed, half random: colliding processes must not collide again.
		time.Sleep(wait/2 + rand.N(wait/2+1))
	}
}

// until stops when ctx ends or closing is closed; nil never is.
func until(ctx context.Context, closing <-chan struct{}) (stop func() error) {
	return func() error {
		select {
		case <-closing:
			return ErrClosed
		default:
			return ctx.Err()
		}
	}
}

// lockError names the lock that an operation waited for until its time was up.
func lockError(err error) error {
	if errors.Is(err, ErrClosed) {
		return err
	}
	return fmt.Errorf("another process holds the database's lock: %w", err)
}

// Busy reports whether another try can help.
func Busy(err error) bool {
	switch primaryCode(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return true
	}
	return errors.Is(err, errLocked)
}

// Unrecovered reports that a file cannot be read without a change: a process was killed while
// it wrote, and the next process that opens the file for writing recovers it.
func Unrecovered(err error) bool {
	return errors.Is(err, errUnrecovered) || primaryCode(err) == sqlite3.SQLITE_READONLY
}

var errUnrecovered = errors.New("its log is not yet recovered from a crash, which the next process to open it does")

// errDamaged says that the content of the file contradicts itself. For a page that cannot be read
// at all SQLite returns SQLITE_CORRUPT instead.
var errDamaged = errors.New("its content contradicts itself")

// primaryCode is SQLite's result code without its extension, 0 for errors of
// other origin.
func primaryCode(err error) int {
	if errors.Is(err, errDamaged) {
		return sqlite3.SQLITE_CORRUPT
	}
	var e *sqlitedriver.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff
}

// explain adds the path and a hint to SQLite's error.
func (k *Kind) explain(path string, err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	switch primaryCode(err) {
	case sqlite3.SQLITE_NOTADB:
		hint = "this file is not an SQLite database, and is left as it is: "
	case sqlite3.SQLITE_CORRUPT:
		hint = "the database is damaged, and is left as it is; " + k.Damaged + ": "
	case sqlite3.SQLITE_READONLY:
		hint = "the database cannot be written (the file, its directory or the file system is read-only for this user): "
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		hint = "the database cannot be opened (check the permissions of the file, of its -journal or -wal file and of the directory): "
	case sqlite3.SQLITE_FULL:
		hint = "the disk is full: "
	case sqlite3.SQLITE_IOERR:
		hint = "the disk failed or is full: "
	}
	if errors.Is(err, ErrMoved) {
		return fmt.Errorf("sqlite:%s: %w: %s", path, err, k.Moved)
	}
	return fmt.Errorf("sqlite:%s: %s%w", path, hint, err)
}
