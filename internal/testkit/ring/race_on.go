//go:build race

package ring

// Race reports whether the test binary has the race detector. The daemon under
// test then has it too.
const Race = true
