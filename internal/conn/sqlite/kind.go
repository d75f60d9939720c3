package sqlitefile

import (
	"context"
	"errors"
	"fmt"
)

// Kind describes the purpose and the schema of a file.
type Kind struct {
	// Name completes "this file is not a ... that can be used".
	Name string
	// ApplicationID identifies the kind in the file's header.
	ApplicationID int32
	// Schema are the statements that fill an empty database, of the latest version.
	Schema []string
	// Migrations lead from each version to the next: the first from version 1 to 2.
	// Their number determines the latest version.
	Migrations [][]string
	// Additions add missing parts to an older file of the same version. They run at every
	// opening, are idempotent, and write no rows.
	Additions []string
	// Unreleased are tables that only programs from before the first release made. A
	// file that has one is refused.
	Unreleased []string
	// Loose are tables that the digest leaves out: they follow from others, or no decision
	// depends on them.
	Loose []string
	// Mend are statements that empty derived tables, for a file that may hold parts of two
	// copies. They are filled again when needed.
	Mend []string
	// Probe is a query for one row of an important table, so that opening a file that was
	// cut short fails.
	Probe string
	// Moved and Damaged say what to do about a file that was moved away while in use, and
	// about a damaged one.
	Moved, Damaged string
}

// create fills the empty database of that identity. The WAL mode comes last: it
// is a property of the file, and what precedes it needs no log.
func (k *Kind) create(s *Session, id identity) error {
	statements := []string{"PRAGMA synchronous=OFF", "PRAGMA journal_mode=MEMORY", "BEGIN EXCLUSIVE", lifeSchema}
	statements = append(statements, k.Schema...)
	statements = append(statements,
		fmt.Sprintf("PRAGMA application_id=%d", k.ApplicationID),
		fmt.Sprintf("PRAGMA user_version=%d", k.version()))
	for _, q := range statements {
		if err := s.ExecOnce(q); err != nil {
			return err
		}
	}
	digest, err := s.digest(k.Loose)
	if err != nil {
		return err
	}
	if err := (life{ID: newMark(), File: id, Digest: digest, Trusted: true}).write(s); err != nil {
		return err
	}
	return errors.Join(s.ExecOnce("COMMIT"), s.ExecOnce("PRAGMA journal_mode=WAL"))
}

// check returns an error if this program cannot use the database as this kind. It migrates
// an older one.
func (k *Kind) check(ctx context.Context, s *Session, path string) error {
	var id int32
	if err := s.QueryRow("PRAGMA application_id", nil, &id); err != nil {
		return err
	}
	if id != k.ApplicationID {
		return k.foreign("it is an SQLite database of another program (application_id %d)", id)
	}
	if alive, err := hasTable(s, lifeTable); err != nil {
		return err
	} else if !alive {
		return k.unreleased("no", lifeTable)
	}
	for _, table := range k.Unreleased {
		if there, err := hasTable(s, table); err != nil {
			return err
		} else if there {
			return k.unreleased("the", table)
		}
	}
	if err := k.migrate(ctx, s, path); err != nil {
		return err
	}
	var mode string
	if err := s.QueryRow("PRAGMA journal_mode=WAL", nil, &mode); err != nil {
		return err
	}
	if mode != "wal" {
		return k.foreign("its file system does not support a write-ahead log (journal mode %q)", mode)
	}
	for _, q := range k.Additions {
		if err := s.ExecOnce(q); err != nil {
			return err
		}
	}
	var probed int64
	return s.QueryRow(k.Probe, nil, &probed)
}

// foreign is the error about a file that this program must not write.
func (k *Kind) foreign(why string, args ...any) error {
	return fmt.Errorf("this file is not a %s that can be used: %s", k.Name, fmt.Sprintf(why, args...))
}

// unreleased is the error about a file of a program from before the first release.
func (k *Kind) unreleased(which, table string) error {
	return k.foreign("it has %s table %s, so it was written by a kazahanad from before the first release; "+
		"move it away once everything that was granted from it has ended", which, table)
}
