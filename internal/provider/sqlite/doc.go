// Package sqlite is the embedded provider: grants in one SQLite file, which
// many processes of a host may use at once.
//
// # What is promised
//
// A grant is on disk before it is returned (WAL, synchronous=FULL). Every
// operation runs in a transaction that holds the file's write lock from its
// beginning (BEGIN IMMEDIATE), reads the clock under the lock, and checks and
// writes in one step, so that the grant rule of package provider holds between
// all processes. Operations that arrive while another commit is on its way to the
// disk share the next transaction, one after the other; one that fails is undone
// alone, and none is answered before the commit that holds it. The scope is the host: two hosts with a file each grant the
// same machine IDs, which is why a new file starts at a random slot.
//
// A file that was deleted, moved or replaced under a running process is
// noticed before each operation and again after each commit, and nothing is
// granted from it. A file that is not a healthy database of a known version is
// an error and never replaced.
//
// # How a free slot is found
//
// Tables slot and history hold what was granted. From slot follows, for each
// ring (a range of machine IDs in one bit_seq, see package provider), when each
// of its machine IDs can be granted again. That is kept as runs of neighbouring
// machine IDs with the same time, so that a ring of 2^29 machine IDs that were
// never granted is one row:
//
//	run: | 0 ── 4811: never | 4812: 12:07 | 4813: 12:09 | 4814 ── 8191: never |
//
// An index over (free_at, low) gives the least time, and among equals the next
// one after the cursor, in O(log n). A grant of the same or a coarser bit_seq
// sets its whole range to one value, because every slot in it was free and has
// the same end now: one run, whatever the difference in size. A grant of a
// finer bit_seq raises the one coarse machine ID that it lies in. Only a
// release can lower a time; the coarse machine ID's is then the greatest end of
// all finer records in it, which table inside keeps in order.
//
// A grant thus costs O(log n) for each ring of its pool, plus the runs that it
// merges, each of which an earlier grant has paid for. A ring is built from the
// records when its layout or range is first asked for. A pool has at most
// maxRings; the one not used for longest gives way.
package sqlite
