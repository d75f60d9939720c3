// Package boottime has a clock that counts the time while the machine is suspended, and cannot be
// set: the end of a lease is counted by it.
package boottime
