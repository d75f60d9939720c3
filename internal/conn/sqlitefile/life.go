package sqlitefile

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// lifeSchema is a table of one row about the file itself. Every commit writes it.
const lifeSchema = `CREATE TABLE life (
		one            INTEGER PRIMARY KEY CHECK (one = 1),
		id             TEXT    NOT NULL,
		inode          INTEGER NOT NULL,
		born_ns        INTEGER NOT NULL,
		commits        INTEGER NOT NULL,
		digest         INTEGER NOT NULL,
		last_ms        INTEGER NOT NULL,
		latest_end_ms  INTEGER NOT NULL,
		longest_ms     INTEGER NOT NULL,
		forgot         INTEGER NOT NULL,
		trusted        INTEGER NOT NULL,
		fence_from_ms  INTEGER NOT NULL,
		fence_until_ms INTEGER NOT NULL,
		fence_reason   TEXT    NOT NULL
	) STRICT`

// life is the row of table life. Times are Unix ms.
type life struct {
	ID      mark     // random; another one after each fence
	File    identity // of the file that the row was written into
	Commits int64    // rises with each commit, also from one life to the next
	Digest  uint64   // of the rows; see digest.go

	LastMS      int64 // of the latest commit
	LatestEndMS int64 // the latest end of anything that was ever granted
	LongestMS   int64 // the longest time from a grant to its end

	Forgot    bool // there was an earlier life, of which something may be missing
	Trusted   bool // nothing is missing: this is the first life, or an operator said so
	FenceFrom int64
	FenceEnds int64 // 0: there is no fence
	Reason    string
}

// Fence says whether a file may have forgotten grants, and until when it must grant
// nothing.
type Fence struct {
	// Life names the file's present life; another one begins with each fence.
	Life string
	// Forgot says that grants of an earlier life may be missing.
	Forgot bool
	// Trusted says that nothing is missing: there was no loss, or an operator said so.
	Trusted bool
	// FromMS is when the fence began, and UntilMS when grants begin again, in Unix ms; 0
	// without a fence.
	FromMS, UntilMS int64
	Reason          string // for people
}

// Holds reports whether nothing may be granted now.
func (f Fence) Holds(nowMS int64) bool { return nowMS < f.UntilMS }

func (l life) fence() Fence {
	return Fence{Life: l.ID.String(), Forgot: l.Forgot, Trusted: l.Trusted, FromMS: l.FenceFrom, UntilMS: l.FenceEnds, Reason: l.Reason}
}

// admit notes how long the grants of a process last, and reports whether that is longer than any
// known term. Earlier grants of that process may be missing: the fence lasts longer for them.
func (l *life) admit(termMS int64) bool {
	if termMS <= l.LongestMS {
		return false
	}
	l.LongestMS = termMS
	if l.FenceFrom > 0 {
		l.FenceEnds = max(l.FenceEnds, l.FenceFrom+termMS)
	}
	return true
}

// point is the commit that wrote the row.
func (l life) point() point { return point{l.ID, l.Commits} }

// readLife reads the row.
func readLife(s *Session) (l life, err error) {
	var id string
	var digest int64
	err = s.QueryRow(`SELECT id, inode, born_ns, commits, digest, last_ms, latest_end_ms, longest_ms, forgot, trusted,
		fence_from_ms, fence_until_ms, fence_reason FROM life WHERE one = 1`, nil,
		&id, &l.File.Inode, &l.File.BornNS, &l.Commits, &digest, &l.LastMS, &l.LatestEndMS, &l.LongestMS, &l.Forgot, &l.Trusted,
		&l.FenceFrom, &l.FenceEnds, &l.Reason)
	if errors.Is(err, sql.ErrNoRows) {
		return life{}, fmt.Errorf("%w: table life is empty", errDamaged)
	}
	if err != nil {
		return life{}, err
	}
	l.Digest = uint64(digest)
	if l.ID, err = uuid.Parse(id); err != nil {
		return life{}, fmt.Errorf("%w: table life: %w", errDamaged, err)
	}
	return l, nil
}

func (l life) write(s *Session) error {
	_, err := s.Exec(`INSERT OR REPLACE INTO life (one, id, inode, born_ns, commits, digest, last_ms, latest_end_ms, longest_ms,
		forgot, trusted, fence_from_ms, fence_until_ms, fence_reason) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		l.ID.String(), l.File.Inode, l.File.BornNS, l.Commits, int64(l.Digest), l.LastMS, l.LatestEndMS, l.LongestMS,
		l.Forgot, l.Trusted, l.FenceFrom, l.FenceEnds, l.Reason)
	return err
}
