package sqlitefile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// ReadOnly has look read a file that processes share, and changes nothing. A file with a log is
// another program's, and cannot be read.
func ReadOnly(ctx context.Context, path string, look func(*Session) error) error {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if _, err := os.Stat(resolved + "-wal"); err == nil {
		return errUnrecovered
	}
	s, err := connect(ctx, resolved, "mode=ro&_pragma=busy_timeout(2000)")
	if err != nil {
		return err
	}
	return errors.Join(look(s), s.Close())
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
