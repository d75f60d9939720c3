// Package redis keeps locks on a Redis server, for all hosts that use it.
//
// # What is promised
//
// An operation is one Lua script by Redis's own clock; it makes the transition
// that lock.Apply defines. It is answered when min_replicas have confirmed it.
// One that they do not confirm is an error that leaves open what became of it,
// and a lease that was granted just then is given back.
//
// # A store that may forget
//
// Redis acknowledges a write before it is on a disk or a replica. The store's
// record names the server's incarnation (see package redisconn). Where that has
// changed, or there is no record, a new life of the store begins:
//
//   - No lease is granted until every lease that may be forgotten has ended: for
//     the longest term that was ever granted (rounded up to 1, 2, 4, ... minutes),
//     or Options.MaxTTL where none is known, from the later of now and the latest
//     time on record. failover_fence replaces that, but not where the record is
//     missing. Init ends it. Renewals, releases and repeated requests go on, since
//     what the store knows is its owner's.
//   - The next token of each key is greater than the server's time in
//     microseconds, than the key's last and than the highest of all keys, so that
//     none comes twice, whatever was forgotten.
//
// What remains is a lease with a longer term than any before, granted and lost in
// the moment before a failover: the fence does not know of it. Two may then hold
// the lock, with different tokens. min_replicas closes this.
//
// # Keys
//
// After the prefix, "{kazahana}:" by default. Times are Unix milliseconds.
//
//	@lock                 HASH  the store: incarnation (run_id, repl_id), life,
//	                            highest token, longest_ms, last_ms, fence_*
//	@lock:<tenant>:<key>  HASH  a lock: token, lease, owner, status, acquired,
//	                            expires, request (of the acquire), ttl, life,
//	                            answers (how often the lease was told), receipts
//	                            (a line for each request that was carried out).
//	                            Removed by Redis lock.KeepIdle after its end
//	@locks:<tenant>       ZSET  keys that are held, in order; some are not any more
//
// A release publishes on the channel that is called like the lock.
package redis
