// Package pool grants machine IDs from a record store: the one pool of memory, SQLite, Redis,
// etcd and PostgreSQL.
//
// # The grant rule
//
// In a pool, two grants with overlapping slots have disjoint intervals [created, end).
// There is one grant recorded per slot (its start and bit_seq), and it is never deleted. A
// grant replaces the grant of its own slot only, and only when every recorded grant with
// an overlapping slot has an end of at most now; it is created now. The rule compares
// values, and rests on no clock and on no term of a record. The store commits a change
// only if the rule's view still holds, which makes the check and the write one step.
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
//     lack something. A repeated acquire counts once, a repeated extension twice.
//
// # Requests
//
// The leases of a request are its caller's to ask for again, also where replicas have not
// confirmed them: then they stay as they are, and the same request gets them later. Only
// grants without a request ID are given back. A request that was granted a part, and then
// found the store busy or fenced, is answered with the part. After a busy store, a
// repetition gets the rest too.
//
// # Which slot
//
// An acquire looks at a few random blocks. There it takes the slots that have been free for
// longest. If none is free, it lists the ends of all blocks, and remembers them for a
// second. Only a list of its own tells it that nothing is free.
//
// # Secrets
//
// The secret of a lease is a MAC of its grant's nonce and slot by the pool's key. So no
// record has it, and nothing sends it to the store or back. The key is part of the head: a
// reader of the area can compute all secrets. Writing the head sends the key, so an observer
// of a store's commands (MONITOR on Redis) sees it when a pool is made, and when Init begins
// another layout.
package pool
