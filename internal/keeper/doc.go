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
// Between a provider on a SQLite file and the generator, 14 files decide on a lease:
//
//   - due.go: whether one is missing; core.go: what comes first; acquire.go: whether a
//     granted one is used.
//   - provider/pool/acquire.go: which ones are granted, by what choose.go finds free,
//     grant.go knows to be taken and head.go says of the pool; pool.go: whether anything
//     may be; answer.go: what a repetition gets.
//   - record/sqlite/sqlite.go: at which time; conn/sqlitefile/group.go: whether it is on
//     the disk; fence.go: whether the file is the one that it was.
//   - state/live.go: whether the next life may have it.
//   - generator/core.go: which IDs it makes.
//
// Others carry it: keeper.go calls backend/provider.go, which opens the file by
// leases_sqlite.go; conn/sqlitefile/worker.go runs the change; state/state.go and
// generator/generator.go hand it on.
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
