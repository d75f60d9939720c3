// Package keeper keeps one service supplied with leases. It alone asks the provider
// for them, and runs beside the request path, which never waits for it: it publishes its
// leases to the generator.
//
// Core decides. It takes one event after the other (a tick, the provider's answer, a
// write that is done, the stop of the daemon) with the time, and returns the one
// action to take next. Keeper carries the actions out; the simulations of test/proof
// and test/capacity have shells of their own around the same Core.
//
// # The way of a lease
//
// core.go asks for what due.go finds missing, acquire.go makes the request, and keeper.go
// calls the provider. In a SQLite file, which backend/leases_sqlite.go opens,
// provider/pool/acquire.go chooses (choose.go) and grants (grant.go, head.go). Its rule runs
// in record/sqlite/sqlite.go, inside the transaction of conn/sqlitefile/group.go. acquire.go
// here then judges the lease. state/live.go saves it, before generator/core.go uses it.
//
// # Guarantees
//
//   - Single user: before a lease is released the generator is sealed against
//     it, then it leaves the local state, then the release is sent, once, stamped
//     with max(clock, last embedded timestamp). If the local state cannot be
//     written, no release is sent, and the lease runs out by itself.
//   - A planned restart is never worse than a kill -9: stop.go says how.
//   - A lease that was released, taken over or refused is never published
//     again, neither as a lease nor as the cached one.
//   - A lease on another timeline (epoch, bit_ts) is refused.
//   - What users know as a renewal is a new lease, acquired at 90% of the term
//     (seed A.1). The old one is handed back as soon as the whole throughput is there
//     without it; what replaces it in part only does not end it.
package keeper
