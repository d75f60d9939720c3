// Package etcd is the provider on an etcd cluster: grants that a majority of
// its members has on disk before they are returned.
//
// # What is promised
//
// There is one key per (slot start, bit_seq). It is written by grants, releases
// and extensions, never deleted, and never attached to an etcd lease: a record
// outlives its holder. Every write is a transaction that compares revisions,
// so that the grant rule of package provider holds whatever its writer knew:
//
//   - No record of a slot inside this one, itself included, was written since
//     those were that made it free: one range comparison, which holds for keys
//     that do not exist yet too.
//   - No record of a slot that contains this one was: one comparison for each
//     coarser bit_seq in use. Which those are is POOL/level/..., and that no
//     other has come into use is a range comparison as well. A bit_seq is noted
//     there before its first record can be written.
//   - The pool is the one whose timeline was read, and nobody has answered the
//     same request. So a transaction may be sent twice, when it is not known
//     whether the first one was carried out.
//
// etcd has no clock that tells the time: this host's is used. Why that is safe,
// and how a host with a clock that is far off is found, is told in clock.go.
//
// etcd does not forget, short of being restored from a backup or emptied by
// hand, so there is no fence and nothing to initialise.
//
// # How a free slot is found
//
// What is searched is a hint: a slot that is wrongly thought free costs a lost
// race, one that is wrongly thought taken waits for the next acquire. Before
// FullError the search is as of a moment after the acquire began.
//
//   - Who acquires rarely scans: it reads the records from the ring's cursor on,
//     page by page, until it has found enough. See scan.
//   - Who acquires often has a view: all records of the pool in memory, kept up
//     to date by a watch. See view. The key POOL/last is written with every
//     change of a slot; its revision says how far a view must have come to be
//     as good as a scan, so that acquires that follow one another, by whatever
//     processes, keep the order of package provider exactly.
//
// No key is both written and compared by all acquires. The cursor and POOL/last
// are written and never compared. Acquires that follow the same cursor at once
// do race for the same slot; each loser picks any other of those that it found
// free, at random, and the acquires of one process do not race with each other at
// all.
//
// # What is remembered
//
// Each slot has a number of history keys, which its grants overwrite in turn;
// a ring has room for maxHistory grants. Requests are remembered for
// requestsKept, and about maxRequests of them: each acquire looks at a few at
// random and deletes those that are old and whose leases have ended, extended
// or not. Nothing needs a sweep.
package etcd
