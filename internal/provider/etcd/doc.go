// Package etcd is the provider on an etcd cluster: a majority of its members has a grant
// on disk before the grant is returned.
//
// # What is promised
//
// There is one key per slot (its start and bit_seq). Grants, releases and extensions
// write it; it is never deleted, and never attached to an etcd lease: a record outlives
// its holder. The rules are those of package pool. A transaction carries their decision
// out if what they rest on is unchanged:
//
//   - No record of a slot inside this one, itself included, was written since: one range
//     comparison, which holds for keys that do not exist yet too.
//   - Nor of a slot that contains this one: one comparison for each coarser bit_seq in
//     use. POOL/level/... lists these before their first record can be written, and a
//     range comparison says that none was added.
//   - The pool has the timeline that was read, and no other process has answered the same
//     request. So a transaction may be sent twice if its outcome is unknown.
//
// etcd has no clock that tells the time: this host's is used. clock.go says why that is
// safe, and how a host with a wrong clock is found.
//
// etcd does not forget, unless it is restored from a backup or emptied by hand, so there
// is no fence and nothing to initialise.
//
// # How a free slot is found
//
// A process reads the records from the ring's cursor on, page by page, until it has found
// enough, and keeps a queue of the free slots, best first. The next acquires of the
// process take from the queue, as long as no other process has changed a slot: the version
// of POOL/last counts the changes. So the order of package pool is kept exactly within
// the first scanEnough records. The queue is a hint: a slot that is wrongly thought free
// costs a lost race. Only a search of that moment answers with FullError.
//
// The cursor and POOL/last are written and never compared, so acquires do not wait for
// each other at one key. Acquires that follow the same cursor at once do race for the same
// slot. The losers go on with slots of their queue, at random, and read nothing again.
//
// # What is remembered
//
// Each slot has a number of history keys, which its grants overwrite in turn; a ring has
// room for maxHistory grants. Requests are remembered for requestsKept, about maxRequests
// of them. Each acquire looks at a few at random, and deletes those that are old and whose
// leases have ended.
package etcd
