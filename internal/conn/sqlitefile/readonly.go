package sqlitefile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// ReadOnly has look read a file of the sort that owned says, and changes nothing. A file with a
// log is owned by a process, or was by a killed one, and cannot be read.
func ReadOnly(ctx context.Context, path string, owned bool, look func(*Session) error) error {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if _, err := os.Stat(resolved + "-wal"); err == nil {
		return errUnrecovered
	}
	query := "mode=ro&_pragma=busy_timeout(2000)"
	if owned {
		query = "mode=ro&immutable=1" // SQLite would make a log
	}
	s, err := connect(ctx, resolved, query)
	if err != nil {
		return err
	}
	return errors.Join(look(s), s.Close())
}

// Peek reads a file's fence without using the file, and whether it is a copy, which will be
// fenced at its first use.
func Peek(ctx context.Context, path string, owned bool) (fence Fence, isCopy bool, err error) {
	err = ReadOnly(ctx, path, owned, func(s *Session) error {
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
