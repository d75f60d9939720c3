package sqlite

import "github.com/kazahana/kazahana/internal/conn/sqlitefile"

// applicationID is what the file says of itself, in its header: "kzhn".
const applicationID = 0x6b7a686e

// schema has times in Unix milliseconds, and slots as low-bit values. Rows of slot are
// never deleted.
var schema = []string{
	// One row per pool; levels has bit n set when a record has bit_seq n.
	`CREATE TABLE pool (
		id       INTEGER PRIMARY KEY,
		name     TEXT    NOT NULL UNIQUE,
		epoch_ms INTEGER NOT NULL,
		bit_ts   INTEGER NOT NULL,
		levels   INTEGER NOT NULL
	) STRICT`,

	// The latest grant of each slot. From until on it can be granted again.
	`CREATE TABLE slot (
		pool       INTEGER NOT NULL,
		start      INTEGER NOT NULL,
		bit_seq    INTEGER NOT NULL,
		created    INTEGER NOT NULL,
		expired    INTEGER NOT NULL,
		until      INTEGER NOT NULL,
		released   INTEGER NOT NULL,
		secret     TEXT    NOT NULL,
		service    TEXT    NOT NULL,
		meta       TEXT    NOT NULL,
		request    TEXT    NOT NULL,
		history_id INTEGER NOT NULL,
		PRIMARY KEY (pool, start, bit_seq)
	) STRICT, WITHOUT ROWID`,

	// Every grant of the last days: for repeated requests, and for who held
	// which slot when.
	`CREATE TABLE history (
		id       INTEGER PRIMARY KEY,
		pool     INTEGER NOT NULL,
		start    INTEGER NOT NULL,
		bit_seq  INTEGER NOT NULL,
		created  INTEGER NOT NULL,
		expired  INTEGER NOT NULL,
		until    INTEGER NOT NULL,
		released INTEGER NOT NULL,
		service  TEXT    NOT NULL,
		meta     TEXT    NOT NULL,
		request  TEXT    NOT NULL
	) STRICT`,
	`CREATE INDEX history_request ON history (request, pool, service) WHERE request <> ''`,
	`CREATE INDEX history_slot ON history (pool, start, created)`,
	`CREATE INDEX history_until ON history (until)`,
	// What was requested in each pool, for operators: no decision depends on it.
	`CREATE TABLE counter (
		pool             INTEGER PRIMARY KEY,
		clients          INTEGER NOT NULL DEFAULT 0,
		granted          INTEGER NOT NULL DEFAULT 0,
		full             INTEGER NOT NULL DEFAULT 0,
		extended         INTEGER NOT NULL DEFAULT 0,
		extend_not_owner INTEGER NOT NULL DEFAULT 0,
		extend_too_late  INTEGER NOT NULL DEFAULT 0
	) STRICT`,

	// The machine ID assigned last in a ring: machine IDs low to high, both
	// included.
	`CREATE TABLE cursor (
		pool       INTEGER NOT NULL,
		bit_seq    INTEGER NOT NULL,
		low        INTEGER NOT NULL,
		high       INTEGER NOT NULL,
		machine_id INTEGER NOT NULL,
		PRIMARY KEY (pool, bit_seq, low, high)
	) STRICT, WITHOUT ROWID`,

	// The line of each pool; see package pool. It follows from slot. high is the
	// first low-bit value beyond.
	`CREATE TABLE segment (
		pool    INTEGER NOT NULL,
		low     INTEGER NOT NULL,
		high    INTEGER NOT NULL,
		free_at INTEGER NOT NULL,
		bit_seq INTEGER NOT NULL,
		PRIMARY KEY (pool, low)
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX segment_free ON segment (pool, free_at, low)`,
}

// kind describes a lease file.
var kind = sqlitefile.Kind{
	Name: "lease database", Area: "leases", ApplicationID: applicationID,
	Schema:  schema,
	Loose:   []string{"history", "counter", "cursor", "segment"},
	Mend:    []string{"DELETE FROM segment", "DELETE FROM cursor"},
	Probe:   "SELECT count(*) FROM (SELECT 1 FROM slot LIMIT 1)",
	Moved:   "put it back, or restart once the leases granted from it have ended",
	Damaged: "restore it, without a -journal or -wal file beside it, or move it away once every lease granted from it has ended",
}

// Header returns what the header of a lease file must say: the application ID, and the
// schema version.
func Header() (id, version int32) { return kind.ApplicationID, sqlitefile.Version }
