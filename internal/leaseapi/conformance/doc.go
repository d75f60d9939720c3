// Package conformance checks a lease server that somebody has written: what a
// daemon relies on, which is seed 000, sections 4.2, 4.5 and 7.1, and what it makes
// use of where it is there.
//
// It takes a few leases and gives them back. Whatever a check looks at, the end
// re-checks the rule on which uniqueness rests: two leases whose slots overlap are
// never valid at the same time.
package conformance
