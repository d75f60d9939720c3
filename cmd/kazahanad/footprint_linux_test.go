package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestDropBinaryPages: the pages go, and the program does not notice.
func TestDropBinaryPages(t *testing.T) {
	before := residentFile(t)
	dropBinaryPages()
	if after := residentFile(t); after >= before {
		t.Errorf("%d kB of files in memory, %d kB before", after, before)
	}
}

// A process that needs its memory is asked for it less and less often.
func TestNextGiveBack(t *testing.T) {
	for _, c := range []struct {
		pause time.Duration
		gave  int64
		want  time.Duration
	}{
		{giveBackFirst, 0, 2 * giveBackFirst},
		{giveBackFirst, -1 << 20, 2 * giveBackFirst}, // it has grown meanwhile
		{giveBackLast / 2, worthwhile - 1, giveBackLast},
		{giveBackLast, 0, giveBackLast},
		{giveBackLast, worthwhile, giveBackFirst},
	} {
		if got := nextGiveBack(c.pause, c.gave); got != c.want {
			t.Errorf("after %v and %d bytes: %v, want %v", c.pause, c.gave, got, c.want)
		}
	}
}

func residentFile(t *testing.T) (kB int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscan(rest, &kB); !ok || err != nil {
		t.Fatalf("no RssFile: %v", err)
	}
	return kB
}
