// Package conformance checks a lease server of another make: the parts that a daemon
// relies on, and the optional parts that it uses if they exist.
//
// It takes a few leases and gives them back. At the end it checks the rule on which
// uniqueness rests: two leases whose slots overlap are never valid at the same time.
package conformance
