// Package redis is the provider for several hosts on a Redis server: alone,
// behind Sentinel, over TLS or a Unix socket.
//
// # What is promised
//
// Every operation is one Lua script, which Redis runs from beginning to end
// with nothing in between, and which reads Redis's own clock. Check and write
// are one step, so the grant rule of package provider holds between all hosts
// that use the server, as long as the server forgets nothing. Records have no
// TTL; a server that may evict keys is refused.
//
// # A store that may forget
//
// Redis acknowledges a write before it is on a disk or a replica. After a
// restart or a failover the last grants may be unknown to it, and their holders
// go on. So the pool's record names the incarnation that was last granted from:
// the server's run_id, and its replication ID, which tells a server that was a
// replica in between from one that was not. Each acquire compares, in the same
// script that grants. Where the incarnation differs, or there is no record,
// acquires are refused from then on for the longest (term + quarantine) that is
// configured here or was ever granted: what was lost has ended by then.
//
// Why that is enough, step by step:
//
//   - A lost grant was made before the new incarnation's first acquire: the
//     server that made it had been replaced. (If it had not, that is a split
//     brain; min_replicas keeps the side without replicas from granting.)
//   - It was made on terms of a client that is configured here, or that has
//     been seen, or that is yet to come. One that comes with a longer term than
//     any known extends the fence, or raises it again.
//   - It was made by the clock of the server before. The fence is counted from
//     the later of now and the last grant known, so that a new server whose
//     clock is behind does not end it early. What is left is a difference of
//     clocks between the last grant known and the last one lost, and quarantine
//     is there for it.
//   - If the fence itself is lost, by another failover, then that is one more
//     incarnation, and one more fence.
//
// # min_replicas
//
// WAIT runs on the connection that the grant was made on, and so asks for what
// was written up to the grant. Where too few replicas confirm, the grant is
// given back (end = created) and the acquire fails. A caller that dies in
// between leaves a grant that nobody uses, until its end. A repeated request is
// answered with the same leases, and waits for replicas again. A lease that was
// answered twice is not given back by either caller: the other may use it.
//
// Releases are not waited for. One that is lost leaves its slot taken for
// longer. Nor are fence records, for the reason above; a grant that is confirmed
// confirms everything that was written before it.
//
// # How a free slot is found
//
// As in package sqlite: for each ring (a range of machine IDs in one bit_seq)
// there are runs of neighbouring machine IDs that are free from the same time
// on, in two sorted sets whose members are fixed-width text. The least time, and
// among equals the next one after the cursor, is found in O(log n), whatever the
// size of the layout. See lua/rings.lua. Rings follow from the records of slots;
// before a grant those are asked once more, and they outweigh the ring.
package redis
