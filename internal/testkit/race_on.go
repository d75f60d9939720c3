//go:build race

package testkit

// RaceEnabled reports whether the test binary has the race detector. The daemon under
// test has it too then.
const RaceEnabled = true
