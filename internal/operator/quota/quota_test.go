package quota

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// watched returns statistics, with the lines and counts that they write.
func watched() (b *Stats, lines *observer.ObservedLogs, counts map[string]int) {
	core, lines := observer.New(zapcore.InfoLevel)
	counts = map[string]int{}
	return New(zap.New(core), func(quota string) { counts[quota]++ }), lines, counts
}

// Refusals are summed up by quota and user, for a minute.
func TestRefusalsAreSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, counts := watched()
		for i := range 3 {
			b.Refuse(Refusal{"max_in_flight", int64(10 + i), "user 1"})
			time.Sleep(time.Second)
		}
		b.Refuse(Refusal{"memory_limit", 5, "user 2"})
		hits := b.Recent()
		if len(hits) != 2 || hits[0].Whose != "user 2" || hits[1].Refusals != 3 || hits[1].Limit != 12 || hits[1].LastMS-hits[1].FirstMS != 2000 {
			t.Errorf("got %+v", hits)
		}
		if want := "max_in_flight (12) is used up by user 1: 3 refused since 2000-01-01T00:00:00Z"; hits[1].String() != want {
			t.Errorf("got %s", hits[1])
		}
		if counts["max_in_flight"] != 3 || counts["memory_limit"] != 1 {
			t.Error(counts)
		}
		time.Sleep(Window + time.Second)
		if hits := b.Recent(); len(hits) != 0 {
			t.Errorf("after the window: %+v", hits)
		}
		b.Refuse(Refusal{"max_in_flight", 10, "user 1"})
		if hits := b.Recent(); len(hits) != 1 || hits[0].Refusals != 1 {
			t.Errorf("the count goes on: %+v", hits)
		}
	})
}

// However many users are refused, a few are kept, the latest, and few lines are logged.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, lines, counts := watched()
		for i := range 1000 {
			b.Refuse(Refusal{"max_connections", 1, fmt.Sprint("address ", i)})
			time.Sleep(time.Millisecond)
		}
		if hits := b.Recent(); len(hits) != maxHits || hits[0].Whose != "address 999" || len(b.hits) != maxHits {
			t.Errorf("%d kept, %d shown", len(b.hits), len(hits))
		}
		if lines.Len() != logBurst || counts["max_connections"] != 1000 {
			t.Errorf("%d lines, %v", lines.Len(), counts)
		}
	})
}

// The line of a user who is refused all the time comes once a minute, with the count.
func TestALineTellsHowManyWereNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, lines, _ := watched()
		for range 62 {
			b.Refuse(Refusal{"max_in_flight", 10, "user 1"})
			time.Sleep(time.Second)
		}
		all := lines.All()
		if len(all) != 2 {
			t.Fatalf("%d lines", len(all))
		}
		got := all[1].ContextMap()
		if got["quota"] != "max_in_flight" || got["limit"] != int64(10) || got["whose"] != "user 1" || got["unmentioned"] != uint64(59) ||
			got["component"] != "quota" || !strings.Contains(all[1].Message, "used up") {
			t.Errorf("%s %v", all[1].Message, got)
		}
	})
}

// Without statistics nothing is kept.
func TestNoStats(t *testing.T) {
	var none *Stats
	none.Refuse(Refusal{})
	if hits := none.Recent(); hits == nil || len(hits) != 0 {
		t.Error(hits)
	}
}
