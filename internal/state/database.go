package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"os"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	applicationID = 0x6b7a6873 // "kzhs": tells state.db from any other SQLite file

	// schema is version 1. Whoever changes it adds to migrations what leads
	// there, and files of the version before to cmd/kazahanad/testdata.
	schema = `
CREATE TABLE binding (
	one        INTEGER PRIMARY KEY CHECK (one = 1),
	machine    TEXT    NOT NULL,
	boot       TEXT    NOT NULL,
	device     INTEGER NOT NULL,
	inode      INTEGER NOT NULL,
	generation INTEGER NOT NULL
) STRICT;
CREATE TABLE service (
	name     TEXT    PRIMARY KEY,
	content  TEXT    NOT NULL,
	checksum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;`
)

// errDoubtful is wrapped by an error of write after which the new content may
// be in the file all the same.
var errDoubtful = errors.New("it is not known whether it was written")

// database is an open state.db.
//
// The file is reached through SQLite alone while it is open: closing any other
// descriptor of it would drop the POSIX locks that SQLite holds.
type database struct {
	db   *sql.DB
	path string
	id   fileID

	afterCommit func() error // for tests: a commit that reports a failure
}

// contents is all that state.db holds.
type contents struct {
	binding    binding
	generation uint64
	services   map[string]Saved
}

func (c contents) hasLeases() bool {
	for _, saved := range c.services {
		if saved.leases() > 0 {
			return true
		}
	}
	return false
}

func dataSource(path string, parameters string) string {
	return (&url.URL{Scheme: "file", Path: path, RawQuery: parameters}).String()
}

// createDatabase builds a state.db without services and gives it its name when
// complete.
func createDatabase(dir directory, identity Identity, generation uint64) (err error) {
	f, err := dir.createFile(databaseName + newSuffix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.clean(databaseName))
		}
	}()
	info, err := f.Stat()
	if err == nil {
		// No journal and no syncs: until it is renamed, the file is worth
		// nothing. One sync at the end stands for all. SQLite has closed the
		// file before our descriptor goes (see database).
		err = fillDatabase(f.Name(), bind(identity, idOf(info)), generation)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return sqliteError(dir.file(databaseName), "cannot write it", err)
	}
	return dir.publish(databaseName)
}

func fillDatabase(path string, b binding, generation uint64) error {
	db, err := sql.Open("sqlite", dataSource(path, "mode=rw&_pragma=journal_mode(off)&_pragma=synchronous(off)"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	_, err = db.Exec("BEGIN;" + schema + fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d;", applicationID, schemaVersion()))
	if err == nil {
		_, err = db.Exec("INSERT INTO binding VALUES (1, ?, ?, ?, ?, ?); COMMIT",
			b.machine, b.boot, int64(b.file.device), int64(b.file.inode), int64(generation))
	}
	if err == nil {
		_, err = db.Exec("PRAGMA journal_mode = wal") // recorded in the file
	}
	return errors.Join(err, db.Close())
}

// openDatabase opens and checks an existing state.db.
func openDatabase(dir directory, writable bool) (*database, error) {
	path := dir.file(databaseName)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, fileError(path, "cannot look at it", err)
	}
	if info.Size() == 0 { // to SQLite this is a new database
		return nil, damagedDatabase(path, "it is empty", nil)
	}
	// mode: never create. busy_timeout: `state show` and sqlite3(1) may read
	// meanwhile; WAL lets them, but opening and closing take short locks.
	parameters := "mode=ro&_pragma=busy_timeout(2000)"
	if writable {
		// synchronous=full: in WAL mode the default of some builds syncs at
		// checkpoints only, and Save promises more. Writes are rare (one per
		// lease, so every few minutes), hence the WAL is folded back after 32
		// pages and not after SQLite's 1,000, which would be a 4 MB file beside
		// one of 16 KB.
		parameters = "mode=rw&_txlock=immediate&_pragma=busy_timeout(2000)" +
			"&_pragma=synchronous(full)&_pragma=wal_autocheckpoint(32)"
	}
	db, err := sql.Open("sqlite", dataSource(path, parameters))
	if err != nil {
		return nil, sqliteError(path, "cannot open it", err)
	}
	db.SetMaxOpenConns(1) // one writer; and pragmas are a connection's
	d := &database{db: db, path: path, id: idOf(info)}
	if err := d.check(writable); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}

// check reads before it changes anything: a foreign database stays as it is.
func (d *database) check(writable bool) error {
	var application, version int64
	if err := d.db.QueryRow("SELECT application_id, user_version FROM pragma_application_id, pragma_user_version").Scan(&application, &version); err != nil {
		return sqliteError(d.path, "cannot read it", err)
	}
	if application != applicationID {
		return &FileError{Path: d.path, Problem: "is a SQLite database of something else",
			Remedy: "find out what it is and move it away, or set another state_dir"}
	}
	if err := d.checkVersion(version, writable); err != nil {
		return err
	}
	// The file is a few pages long, so that looking at all of it costs nothing.
	var result string
	if err := d.db.QueryRow("PRAGMA quick_check(1)").Scan(&result); err != nil {
		return sqliteError(d.path, "cannot read it", err)
	}
	if result != "ok" {
		return damagedDatabase(d.path, result, nil)
	}
	if !writable {
		return nil
	}
	var mode string
	if err := d.db.QueryRow("PRAGMA journal_mode = wal").Scan(&mode); err != nil {
		return sqliteError(d.path, "cannot use a write-ahead log", err)
	}
	if mode != "wal" {
		return &FileError{Path: d.path, Problem: "SQLite cannot use a write-ahead log there",
			Remedy: "set state_dir to a directory on a local file system"}
	}
	if err := d.migrate(version); err != nil {
		return err
	}
	return d.tryWrite()
}

// tryWrite finds out at the start what Save would run into. SQLite opens a file
// that it may not write without a word, read-only, and fails at the first change
// only. Nothing reaches the disk.
func (d *database) tryWrite() error {
	tx, err := d.db.Begin()
	if err == nil {
		_, err = tx.Exec("UPDATE binding SET generation = generation")
		err = errors.Join(err, tx.Rollback())
	}
	if err != nil {
		return sqliteError(d.path, "cannot write to it", err)
	}
	return nil
}

func (d *database) read() (contents, error) {
	c := contents{services: map[string]Saved{}}
	tx, err := d.db.BeginTx(context.Background(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return c, sqliteError(d.path, "cannot read it", err)
	}
	defer tx.Rollback()
	var device, inode, generation int64
	err = tx.QueryRow("SELECT machine, boot, device, inode, generation FROM binding").
		Scan(&c.binding.machine, &c.binding.boot, &device, &inode, &generation)
	if errors.Is(err, sql.ErrNoRows) {
		return c, damagedDatabase(d.path, "it has no binding", nil)
	}
	if err != nil {
		return c, sqliteError(d.path, "cannot read the binding", err)
	}
	if generation < 0 || generation >= maxGeneration {
		return c, damagedDatabase(d.path, "its generation is out of range", nil)
	}
	c.binding.file = fileID{device: uint64(device), inode: uint64(inode)}
	c.generation = uint64(generation)
	rows, err := tx.Query("SELECT name, content, checksum FROM service")
	if err != nil {
		return c, sqliteError(d.path, "cannot read the services", err)
	}
	defer rows.Close()
	for rows.Next() {
		var name, content string
		var sum int64
		if err := rows.Scan(&name, &content, &sum); err != nil {
			return c, sqliteError(d.path, "cannot read the services", err)
		}
		// SQLite notices a damaged structure but not a changed value, and a
		// changed slot or interval would break uniqueness.
		if sum != checksum(name, content) {
			return c, damagedDatabase(d.path, fmt.Sprintf("what it holds for service %q does not match its checksum", name), nil)
		}
		if c.services[name], err = decode(content); err != nil {
			return c, damagedDatabase(d.path, fmt.Sprintf("service %q", name), err)
		}
	}
	if err := rows.Err(); err != nil {
		return c, sqliteError(d.path, "cannot read the services", err)
	}
	return c, nil
}

func checksum(name, content string) int64 {
	return int64(crc32.Checksum([]byte(name+"\x00"+content), castagnoli))
}

// write stores the services and the generation, and the binding where one is
// given, in one transaction. The error wraps errDoubtful when the transaction
// may have taken effect.
func (d *database) write(generation uint64, services map[string]Saved, rebind *binding) error {
	const problem = "cannot write to it"
	if err := checkPresent(d.path, d.id); err != nil {
		return err
	}
	tx, err := d.db.Begin()
	if err != nil {
		return sqliteError(d.path, problem, err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("UPDATE binding SET generation = ?", int64(generation)); err != nil {
		return sqliteError(d.path, problem, err)
	}
	if rebind != nil {
		if _, err := tx.Exec("UPDATE binding SET machine = ?, boot = ?, device = ?, inode = ?",
			rebind.machine, rebind.boot, int64(rebind.file.device), int64(rebind.file.inode)); err != nil {
			return sqliteError(d.path, problem, err)
		}
	}
	for name, saved := range services {
		content, err := encode(saved)
		if err != nil {
			return fmt.Errorf("state of service %q: %w", name, err)
		}
		if _, err := tx.Exec("INSERT INTO service VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET content = excluded.content, checksum = excluded.checksum",
			name, content, checksum(name, content)); err != nil {
			return sqliteError(d.path, problem, err)
		}
	}
	err = tx.Commit()
	if err == nil && d.afterCommit != nil {
		err = d.afterCommit()
	}
	switch primaryCode(err) {
	case sqlite3.SQLITE_OK:
		return nil
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY:
		// These arise before the last frame of the transaction is complete.
		return sqliteError(d.path, problem, err)
	default:
		// Such as a failed sync: the frames are in the file, and recovery after
		// a crash takes them for committed.
		return fmt.Errorf("%w (%w)", sqliteError(d.path, problem, err), errDoubtful)
	}
}

func (d *database) close() error {
	if err := d.db.Close(); err != nil {
		return sqliteError(d.path, "cannot close it", err)
	}
	return nil
}

// primaryCode is SQLite's result code without its extension, SQLITE_OK without
// an error, and -1 for an error that is not SQLite's.
func primaryCode(err error) int {
	var e *sqlite.Error
	switch {
	case err == nil:
		return sqlite3.SQLITE_OK
	case errors.As(err, &e):
		return e.Code() & 0xff
	}
	return -1
}

// sqliteError explains an error of SQLite or of the operating system.
func sqliteError(path, problem string, err error) *FileError {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return fileError(path, problem, err)
	}
	f := &FileError{Path: path, Problem: problem, Err: err}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_NOTADB:
		f.Problem = "is not a state file of kazahana, or its beginning is damaged"
		f.Remedy = databaseRemedy
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH:
		f.Problem, f.Remedy = "is damaged", databaseRemedy
	case sqlite3.SQLITE_FULL:
		f.Remedy = "free some space on that file system"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		f.Remedy = "give the user that runs this write access to it, to its -wal and -shm files and to the directory"
	case sqlite3.SQLITE_CANTOPEN:
		f.Remedy = "check the permissions of the file and of the directory, in which SQLite makes a -wal and a -shm file"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		f.Remedy = "end the other program (a backup, sqlite3) that has it open"
	case sqlite3.SQLITE_IOERR:
		f.Remedy = "check that the file system has space left, and the system log for disk errors"
		switch e.Code() {
		case sqlite3.SQLITE_IOERR_SHORT_READ:
			f.Problem, f.Remedy = "is damaged: it is cut short", databaseRemedy
		case sqlite3.SQLITE_IOERR_SHMSIZE:
			f.Problem, f.Remedy = "there is no room for its -shm file", "free some space on that file system"
		}
	}
	return f
}

const databaseRemedy = "put the right file back, or move it away together with its -wal and -shm files: the daemon then starts without its leases and takes the timeline from the next one"

func damagedDatabase(path, what string, err error) *FileError {
	return &FileError{Path: path, Problem: "is damaged: " + what, Err: err, Remedy: databaseRemedy}
}
