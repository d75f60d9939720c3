package sqlitefile

import (
	"testing"
	"time"
)

// Operations may share a commit as long as they take no longer than the disk does, or 2 ms.
func TestRoom(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		n           int
		run, commit time.Duration
		want        int
	}{
		{64, 64 * ms / 10, ms, 20},         // 0.1 ms each: 2 ms
		{256, 256 * ms / 10, 10 * ms, 100}, // a slow disk
		{1, ms, 20 * ms, 20},               // expensive operations
		{10, 10 * 5 * ms, ms, minRoom},     // nobody waits for less
		{1, time.Microsecond, 9 * ms, MaxRoom},
	} {
		room := MaxRoom / 2
		for range 100 {
			room = nextRoom(room, test.n, test.run, test.commit)
		}
		if room < test.want-3 || room > test.want+3 {
			t.Errorf("%d operations in %v, a commit in %v: room for %d, not %d", test.n, test.run, test.commit, room, test.want)
		}
	}
	if room := nextRoom(MaxRoom, 1, time.Second, ms); room < MaxRoom/2 {
		t.Errorf("after one pause there is room for %d", room)
	}
}

// A file begins with all the room, and learns from its commits.
func TestRoomOfAFile(t *testing.T) {
	f := mustOpen(t, newPath(t), Options{})
	if f.Room() != MaxRoom {
		t.Errorf("room for %d", f.Room())
	}
	for range 50 {
		if err := f.Write(t.Context(), func(*Tx) error { time.Sleep(10 * time.Millisecond); return nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
	if f.Room() > MaxRoom/2 {
		t.Errorf("after slow operations there is room for %d", f.Room())
	}
}
