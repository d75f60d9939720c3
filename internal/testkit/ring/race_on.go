//go:build race

package ring

// Race reports whether the test binary has the race detector. The daemons
// that the tests build then have it too.
const Race = true
