package refusals

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// watched returns a counter, with the lines and counts that it writes.
func watched() (c *Counter, lines *observer.ObservedLogs, counts map[string]int) {
	core, lines := observer.New(zapcore.InfoLevel)
	counts = map[string]int{}
	return New(zap.New(core), func(limit string) { counts[limit]++ }), lines, counts
}

// Refusals are counted by limit, and shown for a minute after the last one.
func TestRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, counts := watched()
		for range 3 {
			c.Refuse("max_in_flight", "")
			time.Sleep(time.Second)
		}
		c.Refuse("memory_limit", "")
		got := c.Recent()
		if len(got) != 2 || got[0].Limit != "memory_limit" || got[1].Refused != 3 || got[0].LastMS-got[1].LastMS != 1000 {
			t.Errorf("got %+v", got)
		}
		if want := "max_in_flight is reached: 3 refused since the start, the last at 2000-01-01T00:00:02Z"; got[1].String() != want {
			t.Errorf("got %q", got[1])
		}
		if counts["max_in_flight"] != 3 || counts["memory_limit"] != 1 {
			t.Error(counts)
		}
		time.Sleep(Recently + time.Second)
		if got := c.Recent(); len(got) != 0 {
			t.Errorf("after a minute: %+v", got)
		}
		c.Refuse("max_in_flight", "")
		if got := c.Recent(); len(got) != 1 || got[0].Refused != 4 {
			t.Errorf("the count does not go on: %+v", got)
		}
	})
}

// A limit that refuses all the time has a line a minute, which says how many were not logged.
func TestALineTellsHowManyWereNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, lines, _ := watched()
		for range 62 {
			c.Refuse("max_in_flight", "10 requests of UID 1 wait")
			time.Sleep(time.Second)
		}
		all := lines.All()
		if len(all) != 2 {
			t.Fatalf("%d lines", len(all))
		}
		got := all[1].ContextMap()
		if got["limit"] != "max_in_flight" || got["error"] != "10 requests of UID 1 wait" || got["unmentioned"] != uint64(59) ||
			got["component"] != "refusals" || !strings.Contains(all[1].Message, "a limit is reached") {
			t.Errorf("%s %v", all[1].Message, got)
		}
	})
}

// Without a counter nothing is kept.
func TestNoCounter(t *testing.T) {
	var none *Counter
	none.Refuse("max_in_flight", "")
	if got := none.Recent(); got == nil || len(got) != 0 {
		t.Error(got)
	}
}
