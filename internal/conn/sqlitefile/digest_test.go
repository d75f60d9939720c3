package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// thingKind has a table of every sort.
var thingKind = Kind{
	Name: "things", ApplicationID: 0x7468696e,
	Schema: []string{
		"CREATE TABLE a (id INTEGER PRIMARY KEY, text TEXT, bytes BLOB, n INTEGER) STRICT",
		"CREATE TABLE b (x INTEGER, y TEXT, z TEXT, PRIMARY KEY (x, y)) STRICT, WITHOUT ROWID",
		"CREATE TABLE c (n INTEGER) STRICT",
	},
}

// counted checks that the digest that commits have added up is the rows' digest.
func counted(t *testing.T, f *File) {
	t.Helper()
	_, err := Read(context.Background(), f, func(s *Session) (struct{}, error) {
		row, err := readLife(s)
		if err != nil {
			return struct{}{}, err
		}
		if sum, err := s.digest(f.kind); err != nil || sum != row.Digest {
			t.Errorf("the file says %x, and its rows are %x (%v)", row.Digest, sum, err)
		}
		return struct{}{}, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The digest follows all statements, also undone ones.
func TestDigestFollowsEveryStatement(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	f, err := Open(t.Context(), newPath(t), &thingKind, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	statements := []string{
		"INSERT INTO a (text, bytes, n) VALUES ('t' || ?1, x'00ff', ?1 * ?1)",
		"INSERT INTO a (text) VALUES (NULL), ('')",
		"INSERT OR REPLACE INTO a (id, text) VALUES (?1, 'replaced')",
		"INSERT OR IGNORE INTO a (id, text) VALUES (?1, 'ignored')",
		"UPDATE a SET text = text || 'x', bytes = NULL WHERE id % 3 = ?1 % 3",
		"UPDATE a SET id = id + 1000 WHERE id = ?1",
		"DELETE FROM a WHERE id % 7 = ?1 % 7",
		"INSERT INTO b VALUES (?1, 'y', 'z') ON CONFLICT DO UPDATE SET z = z || ?1",
		"INSERT INTO b VALUES (?1, 'y', 'z') ON CONFLICT DO UPDATE SET z = 'no' WHERE x < 0",
		"UPDATE b SET x = x + 100 WHERE x = ?1 AND NOT EXISTS (SELECT 1 FROM b o WHERE o.x = b.x + 100)",
		"DELETE FROM b WHERE x = ?1",
		"INSERT INTO c VALUES (?1)",
		"DELETE FROM c WHERE ?1 % 11 = 0",
	}
	write := func(undone bool) *job {
		query, n := statements[random.IntN(len(statements))], random.Int64N(40)
		return &job{ctx: context.Background(), op: func(t *Tx) error {
			if _, err := t.Exec(query, n); err != nil {
				return err
			}
			if undone {
				return errRefused
			}
			return nil
		}}
	}
	for range 300 {
		var group []*job
		for range 1 + random.IntN(4) {
			group = append(group, write(random.IntN(4) == 0))
		}
		together(f, group...)
		for _, j := range group {
			if j.err != nil && !errors.Is(j.err, errRefused) {
				t.Fatal(j.err)
			}
		}
		counted(t, f)
	}
	if _, err := Read(t.Context(), f, func(s *Session) (int, error) {
		var a, b int
		if err := s.QueryRow("SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)", nil, &a, &b); err != nil || a == 0 || b == 0 {
			t.Errorf("%d and %d rows (%v): the test does not show what it should", a, b, err)
		}
		return 0, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Rows that differ in one value have different hashes.
func TestRowHash(t *testing.T) {
	seen := map[uint64]string{}
	for _, row := range [][]any{
		{}, {nil}, {nil, nil}, {int64(0)}, {int64(1)}, {0.5}, {""}, {[]byte{}}, {"a"}, {[]byte("a")}, {"a", "b"}, {"ab"}, {"", "ab"}, {"ab", ""}, {"b", "a"},
	} {
		_, h := rowHash(nil, "t", row)
		if other, ok := seen[h]; ok {
			t.Errorf("%#v has the hash of %s", row, other)
		}
		seen[h] = fmt.Sprintf("%#v", row)
		if _, other := rowHash(nil, "u", row); other == h {
			t.Errorf("%#v has the same hash in another table", row)
		}
	}
}
