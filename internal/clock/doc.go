// Package clock decides which time to believe.
//
// A wall clock can be wrong for a moment. A single reading an hour ahead, embedded in
// an ID, would stop the host for an hour, because no smaller ID may follow. So the wall
// clock is believed only while it is near its previous course, measured on a clock that
// cannot be set: CLOCK_BOOTTIME, which also counts the time while a machine is
// suspended (Go's monotonic clock does not).
//
//   - Within MaxForward of the course, either way: believed, and the course
//     follows it.
//   - Further ahead: not believed. The course, extrapolated, is the time until
//     the wall clock comes back, a provider with a clock of its own agrees with
//     it, or the difference has lasted Hold.
//   - Further behind: returned as it is, since only the generator knows the limit
//     of its IDs. The course is kept for Hold, so that a clock which returns to it
//     is believed at once.
//   - A reading below the floor, a time that has certainly passed, is returned as
//     it is and never becomes the course: it is certainly wrong, and no evidence
//     against the right one that follows.
//
// If the Source has a monotonic clock that is cheap to read, that clock stands in for
// the wall clock for lookEvery after each believed reading. A step is seen that much
// later.
//
// Nothing here is needed for uniqueness; it is about availability and order.
package clock
