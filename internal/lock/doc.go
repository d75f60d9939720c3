// Package lock is the lock service of LS-SPEC-001: exclusive leases with fencing
// tokens, one per tenant and key.
//
// # Layers
//
//   - Apply is a pure transition (knowledge of a key, request) -> (state, answer). It is the only
//     place where a lock is granted, renewed or released.
//   - Records runs it as a rule over one record of a record.Store. The record has the
//     lease's term: the store judges when it has ended. Another Store is the client of a
//     lease server. Package locktest holds each to the same behaviour; docs/locks.md has
//     the table of requirements and tests.
//   - A Host stands before a Store. Its clients wait in the queue, and it renews their leases.
//     Its decisions are those of hostCore, a step function over wait queues (waitqueue.go) and
//     holdings (hold.go).
//
// # Guarantees
//
//   - At most one lease of a key is ACTIVE by the store's clock, and tokens of a
//     key strictly increase, through all that is deleted, restarted or forgotten.
//   - A request ID is carried out once, and its repetition answered, as long as the key
//     remembers it (MaxReceipts). A repeated answer shows the present state, and never more
//     than the rest of a lease.
//   - A Host counts a lease's end from before its request was sent, on a clock that
//     counts suspend, and tells the holder of the loss before that end. So the clients
//     of hosts never believe in two holders at once, unless one of them is
//     paused, or the store's own clock jumps ahead (SQLite, Redis) and ends leases
//     before their time. Tokens are for these cases.
//   - A lease that was granted to a caller who is gone is released before a repetition
//     of its request could get it.
package lock
