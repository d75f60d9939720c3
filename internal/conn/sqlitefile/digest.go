package sqlitefile

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	sqlitedriver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// The digest of a file is the sum of a hash of every row of the tables that
// Kind.counted names. A commit adds the rows that it wrote and takes away the rows that
// it replaced, so that its cost does not depend on the size of the file.

// counted returns the tables of the schema that the digest covers. It does not cover tables that
// other programs add.
func (k *Kind) counted() (tables []string) {
	for _, q := range k.Schema {
		if rest, found := strings.CutPrefix(q, "CREATE TABLE "); found {
			name, _, _ := strings.Cut(rest, " ")
			tables = append(tables, name)
		}
	}
	return tables
}

// rowHash is the hash of one row.
func rowHash(buf []byte, table string, row []any) ([]byte, uint64) {
	buf = append(buf[:0], table...)
	for _, v := range row {
		switch v := v.(type) {
		case nil:
			buf = append(buf, 0)
		case int64:
			buf = binary.LittleEndian.AppendUint64(append(buf, 1), uint64(v))
		case float64:
			// Only a damaged file has one: no table has a column for it.
			buf = binary.LittleEndian.AppendUint64(append(buf, 2), math.Float64bits(v))
		case string:
			// The driver's hook cuts text at a NUL byte.
			v, _, _ = strings.Cut(v, "\x00")
			buf = binary.LittleEndian.AppendUint64(append(buf, 3), uint64(len(v)))
			buf = append(buf, v...)
		case []byte:
			buf = binary.LittleEndian.AppendUint64(append(buf, 4), uint64(len(v)))
			buf = append(buf, v...)
		default:
			panic(fmt.Sprintf("sqlitefile: SQLite has no values of type %T", v))
		}
	}
	return buf, xxhash.Sum64(buf)
}

// changes are the effects of a session's statements since the last reset.
type changes struct {
	counted []string // the tables that are in the digest
	delta   uint64   // of the digest
	touched bool     // any table was written to
	err     error    // a row could not be read: the delta is wrong
	row     []any
	buf     []byte
}

// watchRows has the session add up what its statements change.
func (s *Session) watchRows(k *Kind) error {
	s.changes.counted = k.counted()
	return s.hook(s.changes.count)
}

// hook has f called for each row before it is changed; nil ends that.
func (s *Session) hook(f sqlitedriver.PreUpdateHookFn) error {
	return s.conn.Raw(func(conn any) error {
		conn.(sqlitedriver.HookRegisterer).RegisterPreUpdateHook(f)
		return nil
	})
}

func (c *changes) reset() { c.delta, c.touched, c.err = 0, false, nil }

func (c *changes) count(d sqlitedriver.SQLitePreUpdateData) {
	c.touched = true
	if !slices.Contains(c.counted, d.TableName) {
		return
	}
	if n := d.Count(); len(c.row) != n {
		c.row = make([]any, n)
	}
	if d.Op != sqlite3.SQLITE_INSERT {
		c.delta -= c.hash(d.TableName, d.Old(c.row...))
	}
	if d.Op != sqlite3.SQLITE_DELETE {
		c.delta += c.hash(d.TableName, d.New(c.row...))
	}
}

func (c *changes) hash(table string, err error) (h uint64) {
	if err != nil {
		c.err = fmt.Errorf("a row of table %s cannot be read: %w", table, err)
		return 0
	}
	c.buf, h = rowHash(c.buf, table, c.row)
	return h
}

// digest adds up the rows as they are.
func (s *Session) digest(k *Kind) (sum uint64, err error) {
	for _, table := range k.counted() {
		part, err := s.digestOf(table)
		if err != nil {
			return 0, err
		}
		sum += part
	}
	return sum, nil
}

func (s *Session) digestOf(table string) (sum uint64, err error) {
	rows, err := s.conn.QueryContext(context.Background(), "SELECT * FROM "+table)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	row, refs := make([]any, len(columns)), make([]any, len(columns))
	for i := range row {
		refs[i] = &row[i]
	}
	var buf []byte
	for rows.Next() {
		if err := rows.Scan(refs...); err != nil {
			return 0, err
		}
		var h uint64
		buf, h = rowHash(buf, table, row)
		sum += h
	}
	return sum, rows.Err()
}
