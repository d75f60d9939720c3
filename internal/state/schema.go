package state

import (
	"fmt"
	"math/bits"
	"slices"
)

// migrations are what each version of state.db's schema has changed: the first
// are the statements that lead from version 1 to 2.
var migrations []string

// schemaVersion is the latest version of state.db's schema.
func schemaVersion() int64 { return int64(len(migrations)) + 1 }

// checkVersion reports, as an error, that nothing can be done with a database of
// the version.
func (d *database) checkVersion(version int64, writable bool) error {
	switch {
	case version > schemaVersion() || version < 1:
		return otherVersion(d.path, version, schemaVersion())
	case version < schemaVersion() && !writable:
		return &FileError{Path: d.path, Problem: fmt.Sprintf("is of an older schema (%d, this kazahanad has %d)", version, schemaVersion()),
			Remedy: "start the daemon once, which brings it up to date, or look at it with the kazahanad that wrote it"}
	}
	return nil
}

// migrate brings a database of an earlier version to the latest one, in one
// transaction. No copy is kept: what matters of an earlier one are the marks,
// which are elsewhere, and an old copy's leases would not be adopted.
func (d *database) migrate(version int64) error {
	if version == schemaVersion() {
		return nil
	}
	tx, err := d.db.Begin() // immediate: see openDatabase
	if err != nil {
		return sqliteError(d.path, "cannot write to it", err)
	}
	defer tx.Rollback()
	for _, statements := range append(slices.Clone(migrations[version-1:]), fmt.Sprintf("PRAGMA user_version = %d", schemaVersion())) {
		if _, err := tx.Exec(statements); err != nil {
			return sqliteError(d.path, fmt.Sprintf("cannot be brought from schema %d to %d", version, schemaVersion()), err)
		}
	}
	if err := tx.Commit(); err != nil {
		return sqliteError(d.path, "cannot write to it", err)
	}
	return nil
}

// otherVersion is the error about a file of a version that is not known here.
func otherVersion(path string, version, known int64) *FileError {
	switch {
	case version == int64(bits.ReverseBytes32(uint32(known))):
		return &FileError{Path: path, Problem: "was written by a machine of another byte order",
			Remedy: "use it there, or move it away and run `kazahanad state reset-floor`"}
	case version < known:
		return &FileError{Path: path, Problem: fmt.Sprintf("is of schema %d, which no kazahanad writes", version),
			Remedy: "find out what it is and move it away, or set another state_dir"}
	}
	return &FileError{Path: path, Problem: fmt.Sprintf("was written by a newer kazahanad (schema %d, this one knows up to %d)", version, known),
		Remedy: "upgrade this one, or go back as docs/compatibility.md says"}
}
