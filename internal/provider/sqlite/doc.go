// Package sqlite is the embedded provider: grants in one SQLite file, which many processes
// of a host may use at once.
//
// Package sqlitefile says what the file promises. An operation reads the clock, checks and
// writes in one transaction under the file's lock, so the grant rule of package pool
// holds between all processes. The scope is the host: two hosts with a file each grant the
// same machine IDs, which is why a new file starts at a random slot.
//
// # How a free slot is found
//
// Tables slot and history hold what was granted. Package pool has the rules; table
// segment keeps its line, and table cursor where each ring goes on. An index over
// (free_at, low) gives the segment that is free for longest in O(log n). A line that
// is missing is built from the records.
package sqlite
