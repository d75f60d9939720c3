package sqlitefile

import (
	"fmt"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
)

// On a full disk, rows that exist can be changed for as long as needed, also after a restart
// of the last process, and a file that grew before has a reserve again. When there is room,
// everything goes on.
func TestFullDisk(t *testing.T) {
	for name, dir := range map[string]func(*testing.T) string{
		"memory": func(t *testing.T) string { return disktest.Small(t, "32m") },
		"ext4":   func(t *testing.T) string { return disktest.Ext4(t).Dir() },
	} {
		for _, kind := range []*Kind{&diskKind, &ownedKind} {
			t.Run(fmt.Sprintf("%s, owned %v", name, kind.Owned), func(t *testing.T) { onAFullDisk(t, kind, dir(t)+"/file.db") })
		}
	}
}

func onAFullDisk(t *testing.T, kind *Kind, path string) {
	f := openOf(t, kind, path, Options{})
	mustWrite(t, f, "CREATE INDEX ends ON a (text)")
	for i := range 100 { // more than the first reserve, and than one log
		mustWrite(t, f, fmt.Sprintf("INSERT INTO a SELECT printf('%%0200d', 100 * %d + value) FROM (WITH RECURSIVE n(value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM n WHERE value < 99) SELECT value FROM n)", i))
	}
	free := disktest.Fill(t, path+".rest")
	renew := func(f *File, times int) {
		t.Helper()
		for i := range times {
			// An index by end: a renewed row moves to its other side.
			if err := write(f, fmt.Sprintf("UPDATE a SET text = printf('%%0200d', 100000 + %d) WHERE rowid = %d", i, 1+i%10000)); err != nil {
				t.Fatalf("renewal %d: %v", i, err)
			}
		}
	}
	renew(f, 1500)
	if err := write(f, "INSERT INTO b VALUES (hex(zeroblob(4000000)))"); err == nil {
		t.Error("there is room after all")
	}
	renew(f, 100)
	mustWrite(t, f, "INSERT INTO b VALUES (hex(zeroblob(600000)))") // of the reserve: from now on the file has a limit
	renew(f, 100)
	free()
	mustWrite(t, f, "INSERT INTO b VALUES (hex(zeroblob(2000000)))") // at once
	renew(f, 100)                                                    // meanwhile there is a reserve again
	free = disktest.Fill(t, path+".rest")
	renew(f, 100)
	mustClose(t, f)
	f = openOf(t, kind, path, Options{})
	renew(f, 1500)
	free()
	mustWrite(t, f, "INSERT INTO b VALUES (hex(zeroblob(4000000)))")
	renew(f, 100)
}
