// Package state keeps what one daemon must not forget, in its state directory:
//
//	state.db   SQLite: per service the held leases, the cached lease, the
//	           timeline in use and the one it refused; and the binding to this
//	           machine, boot and file
//	marks      memory-mapped, fixed size: per service one timestamp, the mark
//	lock       flock: one daemon per directory; names its holder
//
// # What holds
//
//   - The mark is exclusive: every ID so far embeds a timestamp below it.
//     RaiseMark is one atomic store into the page cache, so that kill -9 loses
//     nothing. A power failure can lose about the last second (Run), after
//     which order also rests on the clock having moved on.
//   - Save is all or nothing, and durable when it returns nil.
//   - A lease comes back from Load only in the same boot of the same machine,
//     from the same file, that saved it. A clone of a disk has the machine ID,
//     device and inode of the original, hence the boot ID: without one nothing
//     is adopted. Leases that are not adopted are dropped durably before Open
//     returns, both held and cached: the other copy may be using them.
//   - A generation, written by every Save to state.db and then to marks, ties
//     the two together. It catches what the binding cannot see: a state.db put
//     back from a backup into the same inode, one that lost its -wal file, or a
//     write that failed after its bytes had reached the file. Each could bring
//     back a lease that was released since, so none is adopted.
//   - The mark never goes down except through ResetFloor, which drops the
//     leases first: uniqueness then rests on the next grants, and only the order
//     against IDs dated ahead is lost.
//   - Nothing damaged, foreign, newer or unwritable is replaced. Such a file is
//     a FileError that names it and says what to do.
//
// # Order of writes
//
// A crash may fall between any two steps, therefore: a service gets its entry in
// marks before its row in state.db (a row without an entry proves that marks was
// lost); state.db is written before the generation in marks (one ahead is a
// crash in between, anything else is not); both files are built under another
// name, synced and renamed.
//
// # Limits
//
// The lock and the mapping want a local file system. RaiseMark makes no system
// call, but the first store to a page after a sync is a page fault, which waits
// while the file system's journal is busy: some milliseconds, at most once a
// second, on a disk under heavy load. On a copy-on-write file system (btrfs,
// ZFS) even an allocated page needs space to be written again: when such a disk
// is full, the kernel may kill the process at RaiseMark. So does truncating
// marks under a running daemon. A restored copy of the whole directory, marks
// included, in the same files and boot cannot be told from the original, nor can
// a virtual machine resumed twice from one memory snapshot.
package state
