// Package pool has the rules of leases: when a slot is granted, to whom, and what
// a release, an extension, a verification and a look at the past mean. Every rule
// stands here once, as a function of what a store has recorded and of the store's
// time. The package does no I/O and reads no clock.
//
// Memory and SQLite grant by Acquire. Redis grants by a script: the conformance suite holds
// it to these rules, and to Acquire, call by call. Others have the pool of package slots.
//
// A store implements Reader within one atomic step, calls a rule, and writes the
// Change that the rule returns before the step ends. A store with transactions
// holds its lock meanwhile. A store with compare-and-set notes what the rule has
// read, and writes only if that has stayed as it was.
//
// # The grant rule
//
// In a pool, two grants whose slots overlap have disjoint intervals [created, end).
// There is one Record per slot (its start and bit_seq), never deleted. A grant
// replaces the record of its own slot only, and only when every record whose slot
// overlaps has an end of at most now. Release and Extend keep that: a release never
// moves an end to a later time, and an extension needs all other records that
// overlap to have ended. Acquire asks the records themselves, whatever has chosen
// the slot.
//
// # Which free slot
//
// The slot with the least (end, distance) is granted:
//
//   - end is the largest end among the records whose slots overlap it, 0 when
//     there is none: the longest free first;
//   - distance is (machine ID - cursor) mod n, counted 1 to n, where cursor is
//     the machine ID assigned last and n the number of machine IDs: among
//     equals, round-robin.
//
// Every range of machine IDs of every bit_seq (Terms.Range) is a ring of its
// own, with a cursor of its own. A new ring's cursor is random where several
// stores might be in use side by side unknown to each other.
//
// # The line
//
// Which slot is free for longest is a question to an index, the line: the low bits
// of a pool, cut into segments that can be granted from the same time on.
//
//	| 0 ── 4811: never granted | 4812: 12:07 | 4813: 12:09 | 4814 ── 8191: never |
//
// A grant paints its slot over whatever was there. That is enough, because a later
// grant always ends later than an earlier one that it overlaps: it was created when
// the earlier one had ended, and an end is never moved before created. So each
// segment belongs to one record, the latest that covers it, and no record that was
// painted over is ever asked again. A release or an extension changes the segments
// that still belong to its record.
//
// The line knows nothing of layouts. A machine ID of any bit_seq is free from the
// greatest end of the segments under its slot. With one layout each segment is one
// machine ID, and the longest free is the first in the order of (FreeAt, Low). A
// machine ID that is wider than the segments under it has its turn when the last
// of them has.
//
// The line follows from the records (see NewLine), so a store may keep it or not.
package pool
