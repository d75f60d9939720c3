// Package sqlitefile is a small database in one SQLite file that many processes
// of a host may use at once. It knows nothing about the stored data: the package that
// passes a Kind does.
//
// # Contract
//
// A write is on disk before File.Write returns (WAL, synchronous=FULL). Every
// write runs in a transaction that holds the file's write lock from its
// beginning (BEGIN IMMEDIATE) and reads the clock under the lock, so that what
// it checks still holds when it writes, between all processes. Writes that
// arrive while another commit is on its way to the disk share the next transaction, one
// after the other, because the sync is most of the cost. One that fails is undone alone, and
// none is answered before its commit.
//
// Before each operation and after each commit a process checks that the file was not
// deleted, moved or replaced; if it was, the process does nothing more with it. A file that
// is not a healthy database of the Kind, in the known version, is an error and never
// replaced; the Kind's application ID distinguishes kinds of files. The version is checked
// before each operation, so that older processes stop when a newer one changes it.
//
// # A disk that does not answer
//
// An operation ends for its caller when the caller's context does, whatever the disk does.
// A goroutine waits for a frozen disk in a system call and never in a page fault: during a
// page fault Go's garbage collector would stop the whole process.
//
// # How an operation may end
//
// An operation that returns nil is committed. Its error undoes it alone, with
// two exceptions: an error made by Answer is a result, and the operation is committed; and
// an error of SQLite itself, or one that wraps ErrInconsistent, ends the transaction for
// all that share it.
package sqlitefile
