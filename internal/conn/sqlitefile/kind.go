package sqlitefile

import (
	"fmt"

	"github.com/google/uuid"
)

// Kind describes the purpose and the schema of a file.
type Kind struct {
	// Name completes "this file is not a ... that can be used".
	Name string
	// Area is the first word of the commands that fence it and end its fence: leases, or store.
	Area string
	// ApplicationID identifies the kind in the file's header.
	ApplicationID int32
	// Version is the schema's. Older says of a file with an earlier one what made it, and what to
	// do.
	Version int32
	Older   string
	// Owned says that one process alone uses the file. Such a file has a log (WAL), which is
	// faster. Others have a rollback journal.
	Owned bool
	// Schema are the statements that fill an empty database. A statement that makes a table
	// begins with CREATE TABLE and a name that needs no quotes.
	Schema []string
	// Moved and Damaged say what to do about a file that was moved away while in use, and
	// about a damaged one.
	Moved, Damaged string
}

// create fills the empty database of that identity.
func (k *Kind) create(s *Session, id identity) error {
	statements := []string{"PRAGMA synchronous=OFF", "PRAGMA journal_mode=MEMORY", "BEGIN EXCLUSIVE", lifeSchema}
	statements = append(statements, k.Schema...)
	statements = append(statements,
		fmt.Sprintf("PRAGMA application_id=%d", k.ApplicationID),
		fmt.Sprintf("PRAGMA user_version=%d", k.Version))
	for _, q := range statements {
		if err := s.ExecOnce(q); err != nil {
			return err
		}
	}
	digest, err := s.digest(k)
	if err != nil {
		return err
	}
	if err := (life{ID: uuid.New(), File: id, Digest: digest, Trusted: true}).write(s); err != nil {
		return err
	}
	return s.ExecOnce("COMMIT")
}

// Recognise returns an error if the file's header belongs to another kind.
func (k *Kind) Recognise(s *Session) error {
	var id int32
	if err := s.QueryRow("PRAGMA application_id", nil, &id); err != nil {
		return err
	}
	if id != k.ApplicationID {
		return k.foreign("it is an SQLite database of another program (application_id %d)", id)
	}
	return k.current(s)
}

// check returns an error if this program cannot use the database as this kind.
func (k *Kind) check(s *Session) error {
	if err := k.Recognise(s); err != nil {
		return err
	}
	if err := k.setMode(s); err != nil {
		return err
	}
	return k.current(s) // the first read makes the log
}

// setMode chooses between log and journal. The journal stays, with its room on the disk.
func (k *Kind) setMode(s *Session) error {
	var mode, want string
	if err := s.QueryRow("PRAGMA journal_mode", nil, &mode); err != nil {
		return err
	}
	if !k.Owned && mode == "wal" {
		return k.foreign("it is in WAL mode, which several processes must not use here. Another program (Litestream, an SQLite shell) has set it, " +
			"or an older kazahanad: end all programs that use the file, then run: sqlite3 FILE 'PRAGMA journal_mode=DELETE'")
	}
	if want = "persist"; k.Owned {
		want = "wal"
	}
	if err := s.QueryRow("PRAGMA journal_mode="+want, nil, &mode); err != nil {
		return err
	}
	if mode != want {
		return k.foreign("its file system does not support journal mode %q (SQLite chose %q)", want, mode)
	}
	return nil
}

// foreign is the error about a file that this program must not write.
func (k *Kind) foreign(why string, args ...any) error {
	return fmt.Errorf("this file is not a %s that can be used: %s", k.Name, fmt.Sprintf(why, args...))
}

// current returns an error if the file is not of the known version. A newer process may
// have changed it meanwhile.
func (k *Kind) current(s *Session) error {
	var found int32
	err := s.QueryRow("PRAGMA user_version", nil, &found)
	switch {
	case err != nil || found == k.Version:
		return err
	case found > k.Version:
		return k.foreign("it was written by a newer kazahanad (schema %d, this one knows up to %d): "+
			"upgrade this one, or go back as docs/compatibility.md says", found, k.Version)
	case found > 0:
		return k.foreign("its schema version is %d, and this kazahanad knows %d alone: %s", found, k.Version, k.Older)
	}
	return k.foreign("its schema version is %d, which no kazahanad writes", found)
}
