package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// SchemaError says that another version of kazahana has the file: a newer one, or
// one of its beginnings that no longer counts.
type SchemaError struct {
	Kind         string
	Found, Known int32
}

func (e *SchemaError) Error() string {
	if e.Found < e.Known {
		return fmt.Sprintf("this file is not a %s that can be used: its schema version is %d, which no kazahanad writes", e.Kind, e.Found)
	}
	return fmt.Sprintf("this file is not a %s that can be used: it was written by a newer kazahanad (schema %d, this one knows up to %d): "+
		"upgrade this one, or go back as docs/compatibility.md says", e.Kind, e.Found, e.Known)
}

// version is the latest one.
func (k *Kind) version() int32 { return int32(len(k.Migrations)) + 1 }

func (k *Kind) found(s *Session) (version int32, err error) {
	err = s.QueryRow("PRAGMA user_version", nil, &version)
	return version, err
}

// current reports, as an error, that the file is no longer of the version that
// this process knows: a newer process has migrated it meanwhile.
func (k *Kind) current(s *Session) error {
	found, err := k.found(s)
	if err == nil && found != k.version() {
		err = &SchemaError{k.Name, found, k.version()}
	}
	return err
}

// migrate brings a file of an earlier version to the latest one, in one
// transaction. What it was is kept beside it, as docs/compatibility.md describes.
func (k *Kind) migrate(ctx context.Context, s *Session, path string) error {
	if done, err := k.migrated(s); done || err != nil {
		return err
	}
	if err := s.ExecOnce("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := k.migrateLocked(ctx, s, path); err != nil {
		return errors.Join(err, s.rollback())
	}
	return s.ExecOnce("COMMIT")
}

// migrated reports whether the file is of the latest version. One that cannot be
// brought there is an error.
func (k *Kind) migrated(s *Session) (bool, error) {
	found, err := k.found(s)
	if err == nil && (found > k.version() || found < 1) {
		err = &SchemaError{k.Name, found, k.version()}
	}
	return found == k.version(), err
}

// migrateLocked is migrate once no other process can write: one may have been
// first meanwhile.
func (k *Kind) migrateLocked(ctx context.Context, s *Session, path string) error {
	if done, err := k.migrated(s); done || err != nil {
		return err
	}
	found, err := k.found(s)
	if err != nil {
		return err
	}
	if err := keepCopy(ctx, path, fmt.Sprintf("%s.schema-%d", path, found)); err != nil {
		return fmt.Errorf("it cannot be copied before it is brought from schema %d to %d: %w", found, k.version(), err)
	}
	for ; found < k.version(); found++ {
		for _, q := range k.Migrations[found-1] {
			if err := s.ExecOnce(q); err != nil {
				return fmt.Errorf("it cannot be brought from schema %d to %d: %w", found, found+1, err)
			}
		}
	}
	if err := k.recount(s); err != nil {
		return err
	}
	return s.ExecOnce(fmt.Sprintf("PRAGMA user_version=%d", k.version()))
}

// recount makes the digest that of the rows as they are now.
func (k *Kind) recount(s *Session) error {
	row, err := readLife(s)
	if err != nil {
		return err
	}
	if row.Digest, err = s.digest(k.Loose); err != nil {
		return err
	}
	row.Commits++
	return row.write(s)
}

// keepCopy writes what the file holds to another one, in place of what a try
// before left there. Whoever calls it holds the file's lock, by another session.
func keepCopy(ctx context.Context, path, to string) error {
	temp := to + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := copyTo(ctx, path, temp); err != nil {
		return err
	}
	return os.Rename(temp, to)
}
