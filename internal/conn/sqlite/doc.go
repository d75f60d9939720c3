// Package sqlitefile is a small database in one SQLite file that many processes
// of a host may use at once. It knows nothing of what is kept in it: that is
// for the package that gives it a Kind.
//
// # What is promised
//
// A write is on disk before File.Write returns (WAL, synchronous=FULL). Every
// write runs in a transaction that holds the file's write lock from its
// beginning (BEGIN IMMEDIATE) and reads the clock under the lock, so that what
// it checks still holds when it writes, between all processes. Writes that
// arrive while another commit is on its way to the disk share the next
// transaction, one after the other, because bringing it to the disk is most of
// what each costs; one that fails is undone alone, and none is answered before
// the commit that holds it.
//
// A file that was deleted, moved or replaced under a running process is noticed
// before each operation and again after each commit, and nothing more is done
// with it. A file that is not a healthy database of the Kind, in a version that
// is known, is an error and never replaced; the Kind's application ID keeps two
// kinds of files from being taken for each other. One of an earlier version is
// migrated when it is opened, in one transaction, after a copy; the version is
// looked at before each operation, so that a process of before stops then.
//
// # A disk that does not answer
//
// An operation ends for its caller when the caller's context does, whatever the
// disk does. What waits for a frozen disk waits in a system call and never in a page
// fault, for which Go's garbage collector would stop the whole process.
//
// # How an operation may end
//
// An operation that returns nil is committed. Its error undoes it alone, with
// two exceptions: one made by Answer is what the caller asked for, and
// committed; and an error of SQLite itself, or one that wraps ErrInconsistent,
// ends the transaction for all that share it.
package sqlitefile
