// Package pool grants machine IDs from a record store: the one pool of memory, SQLite, Redis,
// etcd and PostgreSQL.
//
// # The grant rule
//
// It is that of package provider. The rule compares values, and rests on no clock and on no term of a
// record. All slots that overlap are in one record, and the store commits a change only if the rule's
// view still holds, which makes the check and the write one step.
//
// # Records
//
//   - The head of a pool: its timeline, a bit_seq, and a key. It is
//     among the keys of each change. Init may begin another layout once all leases have
//     ended: init.go says how.
//   - A block: the latest grants of 16 neighbouring slots of the head's bit_seq. That of each
//     service differs from it by at most 4, so its slots lie inside of one block, and overlap is
//     judged in one value. Its past, in a record beside it, has the seven
//     grants before the latest of each slot.
//   - A request: what was granted to it. It is kept for a term and its quarantine, and a
//     repetition is answered by it.
//   - Counters, in 16 shards. What a process has counted is written with its next
//     grant or extension. Where the outcome of that is unknown, they are given up: counters may
//     lack something. A repeated extension counts twice, as may an acquire that two calls carry out.
//
// # Requests
//
// The leases of a request are its caller's to ask for again, after any error but a refusal, and also
// where replicas have not confirmed them: then they stay as they are, and the same request gets them
// later. Only grants without a request ID are given back.
//
// # Which slot
//
// An acquire looks at a few neighbouring blocks, from a random one on. There it takes the slots
// that have been free for longest. If none is free, it lists the ends of all blocks, and
// remembers them for a second: a release by another process may be seen so much later. A block
// that cannot be read is full.
//
// # Secrets
//
// The secret of a lease is a MAC of its grant's nonce and slot by the pool's key. So no
// record has it, and nothing sends it to the store or back. The key is part of the head: a
// reader of the area can compute all secrets. Writing the head sends the key, so an observer
// of a store's commands (MONITOR on Redis) sees it when a pool is made, and when Init begins
// another layout.
package pool
