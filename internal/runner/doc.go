// Package runner holds a leased machine ID or a lock for a foreign program while the
// program runs, and ends the program before the lease or the lock ends.
//
// # What keeps two holders apart
//
// A foreign program knows nothing of leases: it runs until it is stopped. So a lease is
// about real time here, and five rules keep two holders apart:
//
//   - The program is started only when the local clock has reached the lease's
//     beginning, because it makes IDs from that clock.
//   - The lease's end is counted on a clock that cannot be set and that goes on while
//     the machine sleeps, from before the request was sent, since the grant came
//     later. The same holds for extensions. A later end that a provider names by its
//     own clock is not believed.
//   - The program gets SIGTERM a safe margin before that end, and SIGKILL if it is
//     still running shortly before the end.
//   - The provider is asked regularly whether the lease is still this holder's, and a
//     program with a lost lease is ended. If a store can lose leases, a new holder waits
//     for that first (RobberyDelay).
//   - After the program's end, the machine ID is free from the latest time that the
//     program may have dated an ID with. To know that time, the loop reads the clocks
//     every second (dates.go); it misses a jump ahead and back between two readings.
//     It ends a program if the clock is set back to before the lease.
//
// The machine (machine.go) is a pure function of the readings of two clocks and of
// events; Run is the loop around it. A Holding is the part that differs between a
// machine ID and a lock.
//
//	asked ── a third of the term: extend ── ... retries ... ── 9/10: SIGTERM ── 99/100: SIGKILL ── end
package runner
