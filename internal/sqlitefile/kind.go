package sqlitefile

import (
	"fmt"
)

// Kind is what a file is for, and how one is made.
type Kind struct {
	// Name completes "this file is not a ... that can be used".
	Name string
	// ApplicationID and Version are what the file's header says of it.
	ApplicationID int32
	Version       int32
	// Schema are the statements that fill an empty database.
	Schema []string
	// Additions are statements that give an older file of the same version what
	// it lacks. They run at every opening, and change nothing at the second.
	Additions []string
	// Probe is a query for one row that reads a page of what matters most, so
	// that a file cut short fails when it is opened.
	Probe string
	// Moved is what can be done about a file that was moved away while in use,
	// Damaged what can be done about a damaged one.
	Moved, Damaged string
}

// create fills an empty database. The WAL mode comes last: it is a property of
// the file, and what precedes it needs no log.
func (k *Kind) create(s *Session) error {
	statements := []string{"PRAGMA synchronous=OFF", "PRAGMA journal_mode=MEMORY", "BEGIN EXCLUSIVE"}
	statements = append(statements, k.Schema...)
	statements = append(statements,
		fmt.Sprintf("PRAGMA application_id=%d", k.ApplicationID),
		fmt.Sprintf("PRAGMA user_version=%d", k.Version),
		"COMMIT", "PRAGMA journal_mode=WAL")
	for _, q := range statements {
		if err := s.ExecOnce(q); err != nil {
			return err
		}
	}
	return nil
}

// check reports, as an error, why the database is not one that this program can
// use as this kind.
func (k *Kind) check(s *Session) error {
	var id, version int32
	if err := s.QueryRow("PRAGMA application_id", nil, &id); err != nil {
		return err
	}
	if err := s.QueryRow("PRAGMA user_version", nil, &version); err != nil {
		return err
	}
	switch {
	case id != k.ApplicationID:
		return k.foreign("it is an SQLite database of another program (application_id %d)", id)
	case version > k.Version:
		return k.foreign("a newer version of kazahana wrote it (schema %d, this version knows up to %d)", version, k.Version)
	case version < k.Version:
		return k.foreign("its schema version is %d, which no version of kazahana writes", version)
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
