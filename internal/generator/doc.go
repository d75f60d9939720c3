// Package generator owns the strictly increasing stream of IDs of one service.
//
// Core is the stream as a pure transition over (state, now, leases): no
// goroutine, no clock, no lock. Queue is such a transition too: it lets requests
// wait for a millisecond, a clock or a first lease, and shares each millisecond
// evenly among them. Generator is the thin shell: a lock, a clock and one timer.
//
// # Invariants
//
//   - Emit rule: a regular ID embeds a timestamp t with created <= t < expired of the
//     lease with the slot of its low bits. It is the embedded timestamp that is checked,
//     never a clock read before or after.
//   - Strict increase: the state is one pair, the last embedded (millisecond,
//     low bits), and every ID is above it. There is no sequence per lease that
//     could disagree: within a millisecond the low bits only rise, through the
//     leases in the order of their slots.
//   - Mark: before an ID leaves, the durable mark is above its timestamp; after
//     a restart nothing below the mark is embedded.
//   - At most MaxThroughput IDs embed the same millisecond.
//   - A reading of the clock that others have overtaken is never compared with
//     what they embedded: it would look like a clock that went back. It counts
//     only while its millisecond is the one in use.
//   - When Update returns, no ID is made any more from a lease that it left out.
package generator
