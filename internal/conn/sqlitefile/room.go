package sqlitefile

import "time"

// MaxRoom is how many operations may share a commit: enough to divide the cost of the
// sync, and few enough that the first need not wait long.
const MaxRoom = 256

const (
	// minRoom keeps one slow group from ending all sharing.
	minRoom = 8
	// leastRun is how long the operations of a group may take on a disk that is faster.
	leastRun = 2 * time.Millisecond
)

// Room is how many operations should be under way, so that those of a group take no longer
// than its commit: one that comes next waits for twice the disk's time at most, and the disk
// is at work half of the time at least.
func (f *File) Room() int { return int(f.room.Load()) }

// learn adapts the room to a group of n operations that took so long, and to its commit.
func (f *File) learn(n int, run, commit time.Duration) {
	f.room.Store(int64(nextRoom(f.Room(), n, run, commit)))
}

// nextRoom follows what is measured by a quarter of the way: one measurement may be that of a
// pause.
func nextRoom(room, n int, run, commit time.Duration) int {
	each := max(run/time.Duration(n), 1)
	want := int(min(max(commit, leastRun)/each, MaxRoom))
	return min(max(room+(want-room)/4, minRoom), MaxRoom)
}
