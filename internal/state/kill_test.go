package state

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// lastReported is the last whole value that a child reported; 0 if none.
func lastReported(t *testing.T, reported []byte) int64 {
	t.Helper()
	reported = reported[:len(reported)/8*8]
	if len(reported) == 0 {
		return 0
	}
	last := int64(binary.NativeEndian.Uint64(reported[len(reported)-8:]))
	if first := int64(binary.NativeEndian.Uint64(reported)); last-first != int64(len(reported)/8-1) {
		t.Fatalf("the child reported %d to %d in %d values", first, last, len(reported)/8)
	}
	return last
}

// killSometime lets the child work until it has reported a random number of
// values, kills it, and returns all its reports.
func killSometime(t *testing.T, c *child, atMost int) []byte {
	t.Helper()
	reported := make([]byte, 8*(1+rand.IntN(atMost)))
	if n, err := io.ReadFull(c.stdout, reported); err != nil {
		t.Fatalf("the child reported %q, %v", reported[:n], err)
	}
	return append(reported, c.kill(t)...)
}

const kills = 30

// A daemon that raises the mark and saves all the time is killed at any moment: its reported
// saves are there.
func TestKillLosesNothing(t *testing.T) {
	ring.All(t)
	p := inMemory(t)
	previous := int64(0)
	for i := range 2 * kills {
		most := 200
		if i%2 == 0 {
			most = 5_000
		}
		reported := killSometime(t, startChild(t, "busy", p, nil), most)
		last := lastReported(t, reported)
		if first := int64(binary.NativeEndian.Uint64(reported)); first != previous+1 {
			t.Fatalf("life %d began at %d, and the mark was %d", i, first, previous)
		}
		// Two readings: one from beside, and one by a State that takes the directory.
		report := p.inspect(t)
		s := mustOpen(t, p)
		mark, held := s.service("default").Mark(), s.service("default").Load().Held
		s.wantQuiet()
		mustClose(t, s)
		if mark != last && mark != last+1 || mark != report.Services[0].Mark {
			t.Fatalf("life %d: the mark is %d (%d from beside), and the last value reported %d", i, mark, report.Services[0].Mark, last)
		}
		if len(held) != 1 || held[0].Created != last && held[0].Created != mark {
			t.Fatalf("life %d: held %v, and the last value reported %d", i, held, last)
		}
		previous = mark
	}
	t.Logf("%d kills, mark %d", 2*kills, previous)
}

// What a crash left half written is removed by the next write.
func TestLeftOversAreReplaced(t *testing.T) {
	p, saved := usedPlace(t)
	paths := []string{p.disk(stateName + newSuffix)}
	for _, name := range []string{leasesName, marksName} {
		paths = append(paths, filepath.Join(p.folder(t), name+newSuffix))
	}
	for _, path := range paths {
		must.Succeed(t, os.WriteFile(path, []byte("half"), 0o600))
	}
	wantAdopted(t, p, saved)
	s := mustOpen(t, p)
	s.service("default").RaiseMark(testMark + 1)
	must.Succeed(t, errors.Join(s.Sync(), s.service("default").Save(saved)))
	for _, path := range paths[:2] {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}
