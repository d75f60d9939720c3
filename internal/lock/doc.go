// Package lock is the lock service of LS-SPEC-001: exclusive leases with fencing
// tokens, one per tenant and key.
//
// # Layers
//
//   - The core, Apply, is a pure transition (what is known of a key, request) ->
//     (state, answer). Every decision is made here.
//   - Records runs it as a rule over one record of a record.Store, whose term is that
//     of the lease: the store judges when it has ended. Another Store is the client of
//     a lease server. Package locktest holds each to the same behaviour; docs/locks.md
//     has the table of requirements and tests.
//   - A Host stands before a Store and waits, in line, and renews for its clients.
//
// # What it upholds
//
//   - At most one lease of a key is ACTIVE by the store's clock, and tokens of a
//     key strictly increase, whatever is deleted, restarted or forgotten.
//   - A request ID is carried out once. A repeated answer tells what is so now,
//     never more than is left of a lease.
//   - A Host counts a lease's end from before its request was sent, on a clock that
//     counts suspend, and tells the holder of the loss before that end. So those
//     whom hosts serve never believe in two holders at once, unless one of them is
//     paused, or the store's own clock jumps ahead (SQLite, Redis) and ends leases
//     before their time: that is what the tokens are for.
//   - What a Host was granted for somebody who is gone, it releases, before anybody
//     is served who could be told of it as his own.
package lock
