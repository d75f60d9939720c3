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
// Tables slot and history hold what was granted. Package pool has the rules; table
// segment keeps its line, and table cursor where each ring goes on. An index over
// (free_at, low) gives the segment that is free for longest in O(log n). A line that
// is missing is built from the records.
package sqlite
