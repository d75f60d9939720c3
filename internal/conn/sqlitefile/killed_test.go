package sqlitefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// A process is killed while it commits: while it writes its journal, while it writes the main
// file, before it ends the journal, and after it wrote its log. No answered write is missing,
// and nothing is fenced. Where an older copy takes the file's place, in any way, with and
// without the files that the process left beside it, the file is fenced, or refused as
// damaged.
func TestKilledInACommit(t *testing.T) {
	ring.All(t)
	for _, kind := range []*Kind{&diskKind, &ownedKind} {
		moments := []string{"journal", "main file", "end of the journal"}
		if kind.Owned {
			moments = []string{"log"}
		}
		for _, moment := range moments {
			t.Run(moment, func(t *testing.T) {
				k := killIn(t, kind, moment)
				f := openOf(t, kind, k.path, inLive(k.live))
				mustNotBeFenced(t, f)
				want := "old,forgotten"
				if kind.Owned {
					want += ",unanswered"
				}
				if got := readText(t, f, "SELECT group_concat(text) FROM a"); got != want {
					t.Errorf("there is %q, want %q", got, want)
				}
			})
			for _, way := range disktest.Ways {
				for _, left := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s, %s, left %v", moment, way.Name, left), func(t *testing.T) {
						k := killIn(t, kind, moment)
						way.Put(t, k.backup, k.path, left)
						f, err := Open(t.Context(), k.path, kind, Options{LiveDir: k.live, TermMS: term, NowMS: func() int64 { return clockStart }})
						if err != nil {
							if !strings.Contains(err.Error(), "damaged") {
								t.Error(err)
							}
							return
						}
						defer f.Close()
						mustBeFenced(t, f, "")
					})
				}
			}
		}
	}
}

type killedFile struct{ path, live, backup string }

// killIn leaves the files of a process that was killed in its second commit since the backup.
func killIn(t *testing.T, kind *Kind, moment string) killedFile {
	t.Helper()
	k := killedFile{path: filepath.Join(disktest.Ext4(t).Dir(), "db"), live: disktest.Memory(t)}
	k.backup = k.path + ".backup"
	f := openOf(t, kind, k.path, inLive(k.live))
	add(t, f, "old")
	mustClose(t, f)
	disktest.Copy(t, k.path, k.backup)
	f = openOf(t, kind, k.path, inLive(k.live))
	mustWrite(t, f, "INSERT INTO b VALUES ('lost')") // on a page that the last commit leaves
	add(t, f, "forgotten")
	mustClose(t, f)
	read := func(suffix string) []byte {
		b, err := os.ReadFile(k.path + suffix)
		must.Succeed(t, err)
		return b
	}
	before, killed := read(""), errors.New("killed")
	var after, log []byte
	opts := inLive(k.live)
	opts.At = func(step string) error {
		if step != StepCommitted {
			return nil
		}
		if after = read(""); kind.Owned {
			log = read("-wal")
		}
		return killed
	}
	f = openOf(t, kind, k.path, opts)
	if err := write(f, "INSERT INTO a VALUES ('unanswered')"); !errors.Is(err, killed) {
		t.Fatalf("it was not killed: %v", err)
	}
	mustClose(t, f)
	put := func(suffix string, content []byte) { must.Succeed(t, os.WriteFile(k.path+suffix, content, 0o600)) }
	journal := disktest.Journal(before, after)
	switch moment {
	case "log":
		put("", after)
		put("-wal", log)
	case "journal":
		put("", before)
		put("-journal", journal[:len(journal)/2])
	case "main file":
		put("", append(after[:len(after)/2:len(after)/2], before[len(after)/2:]...))
		put("-journal", journal)
	default:
		put("", after)
		put("-journal", journal)
	}
	return k
}
