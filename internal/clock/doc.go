// Package clock tells which time to believe.
//
// A wall clock can be wrong for one reading, and a single reading an hour
// ahead, once embedded in an ID, would stop the host for an hour: nothing
// below it could follow. So the wall clock is believed only while it is near
// the course that it took so far, measured on a clock that nobody sets:
// CLOCK_BOOTTIME, which also counts the time a machine is suspended (Go's
// monotonic clock does not).
//
//   - Within MaxForward of the course, either way: believed, and the course
//     follows it.
//   - Further ahead: not believed. The course, extrapolated, is the time until
//     the wall clock comes back, a provider with a clock of its own agrees with
//     it, or the difference has lasted Hold.
//   - Further behind: told as it is, since only the generator knows what its
//     IDs allow. The course is kept for Hold, so that a clock that returns to
//     where it was is believed at once.
//   - A reading below the floor, a time that is known to have passed, is told
//     as it is and never becomes the course: it is wrong for certain, and no
//     evidence against the right one that follows.
//
// Where the Source has a monotonic clock that is cheap to read, that stands in
// for the wall clock for a moment after each look at it which was believed: a
// step is seen, and judged, by so much later.
//
// Nothing here is needed for uniqueness; it is about availability and order.
package clock
