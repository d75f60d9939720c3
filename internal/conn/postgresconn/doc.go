// Package postgresconn is the connection to a PostgreSQL server: a pool of sessions,
// and transactions that know whether the server may have forgotten something.
//
// # Transactions
//
// Store.Change sends its locks and reads in one message and its writes and the commit
// in another: two round trips. Reads come after the locks, each with a snapshot of its
// own (READ COMMITTED), so a change that waited for a lock sees what its predecessor
// committed. Notifications follow the commit: within it, they would make all commits of
// the server wait for each other. A failure before the writes were sent wraps
// connurl.ErrNotSent; any later one leaves the outcome open. That includes a commit
// with a warning, which is how the server says that it no longer waits for a standby.
//
// # The life of the server
//
// A server's life is its system identifier and the timeline of its write-ahead log: a
// promoted standby, and a backup that was restored to a point in time, begin a timeline.
// Where fsync is off, the start of the server belongs to it too. A session learns them
// when it begins; they cannot change while it lasts. Each transaction compares them with
// the row of table life. Where they differ, the store may have forgotten something: a
// fence begins, from which nothing is granted before everything that may be missing has
// ended. So it does where the server lacks what this process has seen: the end of the
// log in the same life, the latest fence, or its own latest change.
//
// Each session sets synchronous_commit, and each transaction checks it. It cannot be
// off: a server process that crashes would then forget commits without any trace.
//
// # Time
//
// The server's clock_timestamp() is the time. The sequence last_ms keeps the latest time
// of a change, for stores that need a clock that never goes back.
package postgresconn
