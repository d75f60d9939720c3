//go:build !race

package main

// raceEnabled reports whether this test binary has the race detector, and so
// whether the daemon under test shall have it too.
const raceEnabled = false
