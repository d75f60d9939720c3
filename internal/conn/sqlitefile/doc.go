// Package sqlitefile is a small database in one SQLite file. It knows nothing about the stored
// data: the package that passes a Kind does.
//
// # Contract
//
// A write is on disk before File.Write returns (synchronous=FULL). Every write runs in a
// transaction that holds the file's write lock from its beginning (BEGIN IMMEDIATE) and reads
// the clock under the lock, so that each condition still holds when it writes, between all
// processes. Writes that arrive while another commit is on its way to the disk share the next
// transaction, one after the other, because the sync is most of the cost. A write that fails
// is undone alone, and none is answered before its commit.
//
// A file is of one of two sorts (Kind.Owned). Leases are in a file that many processes of a
// host use at once, with a rollback journal: readers and a commit wait for each other. Locks
// and sequences are in a file that one process owns, with a log and its index in that
// process's memory. SQLite maps neither file into memory: see below why.
//
// A file that is not a healthy database of the Kind, in the known version, is an error and
// never replaced; the Kind's application ID distinguishes kinds of files. The version is
// checked in each transaction, so that older processes stop when a newer one changes it.
//
// # A file that was put back
//
// A file holds its own identity (inode and birth time), its life, the number of its commits,
// and a sum over the rows of the Kind's tables, which each commit keeps up to date. The
// watermark, a small file in memory that all processes with the file open share, remembers the
// latest commit and the size and times of the main file. Each transaction compares the file
// with the watermark, with what its process remembers, and its names with the files that it
// has open. Each opening, and each transaction that finds a difference, adds up the rows anew,
// through a new connection, which has nothing of before in its memory. A file that is not as
// it was last written gets a new life, which is fenced: nothing is granted until all grants
// that may be missing have ended. Tables of other programs do not count.
//
// A commit raises Next of the watermark before it begins, and Done before any answer. A
// process that finds the commit of Next raises Done itself, before it answers. So Done is
// never ahead of the file, and at most one commit behind. No process waits for another that
// was killed after its commit, or takes that commit for another program's write. One case is
// not noticed: a file that is overwritten while a commit or a checkpoint writes to it.
//
// # A disk that does not answer
//
// An operation ends for its caller when the caller's context does, also where the disk
// hangs. A goroutine waits for a frozen disk in a system call and never in a page fault:
// during a page fault Go's garbage collector would stop the whole process.
//
// # How an operation may end
//
// An operation that returns nil is committed. Its error undoes it alone, but for an error of
// SQLite itself: that ends the transaction for all that share it.
package sqlitefile
