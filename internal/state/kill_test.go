package state

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

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

const kills = 20

// A daemon that raises the mark and saves all the time is killed at any moment: its reported
// saves are there.
func TestKillLosesNothing(t *testing.T) {
	ring.All(t)
	p := inMemory(t)
	previous := int64(0)
	for i := range kills {
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
	t.Logf("%d kills, mark %d", kills, previous)
}
