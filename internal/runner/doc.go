// Package runner keeps what a foreign program needs, a leased machine ID or a
// lock, for as long as the program runs, and ends the program before that would.
//
// # What it rests on
//
// A foreign program knows nothing of leases: it goes on until it is stopped. So a
// lease is about real time here, and five things keep two holders apart:
//
//   - The program is started when the local clock has reached the lease's
//     beginning, and not before: a machine ID's user makes IDs from that clock.
//   - The lease's end is counted on a clock that nobody sets and that goes on
//     while the machine sleeps, from before the request for it was sent: it was
//     granted later than that. So is every extension. What a provider that goes
//     by its own clock says is believed only as far as that allows.
//   - The program is told to end a safe margin before that, and is killed before
//     the end if it has not.
//   - The provider is asked again and again whose the lease is, and a program whose
//     lease is lost is ended. Where a store can lose one, a new holder waits for
//     that first (RobberyDelay).
//   - What a program leaves is free after the latest time that it may have dated an
//     ID with. The loop reads the clocks every second for that (dates.go): a jump
//     ahead and back between two readings goes unseen. It ends a program whose
//     clock is set back to before its lease.
//
// The machine (machine.go) is a pure function of the readings of two clocks and
// of what happened; Run is the loop around it. A Holding is what differs between
// a machine ID and a lock.
//
//	asked ── a third of the term: extend ── ... retries ... ── 9/10: SIGTERM ── 99/100: SIGKILL ── end
package runner
