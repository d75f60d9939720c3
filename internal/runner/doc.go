// Package runner keeps a leased machine ID for a foreign program for as long as
// the program runs, and ends the program before the lease would.
//
// # What it rests on
//
// A foreign program does not keep the emit rule: it makes IDs from its own clock
// until it is stopped. So the lease is about real time here, and three things
// keep two holders of a machine ID apart:
//
//   - The program is started when the local clock has reached the lease's
//     beginning, and not before.
//   - The lease's end is counted on a clock that nobody sets and that goes on
//     while the machine sleeps, from before the request for it was sent: the
//     provider granted it later than that. An extension moves the end by no more
//     than the provider said that it moved, and no further than a term from
//     before the request for it.
//   - The program is told to end a safe margin before that, and is killed before
//     the end if it has not.
//
// The machine (machine.go) is a pure function of the readings of two clocks and
// of what happened; Run is the loop around it.
//
//	asked ── a third of the term: extend ── ... retries ... ── 9/10: SIGTERM ── 99/100: SIGKILL ── end
package runner
