// Package redis is the provider for several hosts on a Redis server: alone, behind
// Sentinel, over TLS or a Unix socket. docs/providers/redis.md says what it promises.
//
// A grant is one Lua script, which Redis runs with nothing in between, and which reads
// Redis's own clock. It finds a slot, grants and keeps the index of free slots; its answers
// are those of package pool, as TestAnswersAsTheRulesDo shows.
//
// # A store that may forget
//
// Redis acknowledges a write before it is on a disk or a replica. So the pool's record
// names the incarnation that was last granted from, see server.lua. Each acquire compares,
// in the script that grants. Where the incarnation differs, or there is no record, acquires
// are refused for the longest (term + quarantine) that is configured here or was ever
// granted. That is enough:
//
//   - A lost grant was made before the new incarnation's first acquire: the server that
//     made it had been replaced. (If it had not, that is a split brain; min_replicas keeps
//     the side without replicas from granting.)
//   - It was made on terms of a client that is configured here, or has been seen, or is yet
//     to come. One that comes with a longer term extends the fence, or raises it again.
//   - It was made by the clock of the server before, so the fence is counted from the later
//     of now and the last grant known. What is left is a difference of clocks between the
//     last grant known and the last one lost, and quarantine is there for it.
//   - If the fence itself is lost by another failover, that is one more incarnation, and one
//     more fence.
//
// # min_replicas
//
// WAIT runs on the connection that the grant was made on. Where too few replicas confirm,
// the grant is given back (end = created) and the acquire fails, unless the lease was
// answered twice: the other caller may use it. Releases and fences are not waited for. A
// lost release leaves its slot taken for longer; a lost fence is the case above.
//
// # How a free slot is found
//
// For each ring (a range of machine IDs in one bit_seq) there are runs of neighbouring
// machine IDs that are free from the same time on, in two sorted sets whose members are
// fixed-width text, see lua/rings.lua. The least time, and among equals the next one after
// the cursor, is found in O(log n). Rings follow from the records of slots; before a grant
// those are asked once more, and they outweigh the ring.
package redis
