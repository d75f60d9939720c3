// Package state keeps a daemon's local state, in two places:
//
//	state_dir/           on a disk, survives a power failure
//	  state              identity; owner of locks; per service its timeline and its floor
//	  lock               flock: one daemon per state directory; names its holder
//	live_dir/            on a file system in memory, survives kill -9
//	  <identity>/        one folder per state directory
//	    leases           per service the held leases, the cached lease, the timeline
//	    marks            memory-mapped: per service one timestamp, the mark
//	    lock             flock: one daemon per identity
//
// A lease is only ever adopted in the boot that saved it. So it need not be on a
// disk, and a restored copy of the state directory holds no lease.
//
// # What holds
//
//   - The mark is exclusive: every ID so far embeds a timestamp below it.
//     RaiseMark is one store to memory, so kill -9 loses nothing.
//   - Save writes the live state and waits for no disk. The state file follows about
//     a second later. A power failure can cost that second: order then depends on
//     the clock having moved on.
//   - One process uses an identity. A state directory whose folder is locked by a
//     living daemon is a copy: it begins under a new identity, without leases.
//   - Two daemons never take locks as one owner. The owner is adopted only under the identity,
//     in the boot and in the directory, by its inode, that it was made for.
//   - Leases are adopted from the leases file alone, and only if it is the very file
//     that the last life wrote: same boot, same inode, marks that were not replaced
//     or overwritten, and a sequence that the marks expect. A failed write raises
//     the expected sequence, so that an older file is not adopted.
//   - Look notices live files that were removed, replaced or cut short under a
//     running daemon. It voids the old folder, then begins a new one under a new
//     identity, since another daemon may have taken the old one meanwhile.
//   - The mark never goes down except through ResetFloor, which drops the leases
//     first: uniqueness then rests on the next grants, and only the order against
//     IDs dated ahead is lost.
//   - A damaged, foreign or newer state file is a FileError that names it and says
//     what to do; it is never replaced. A damaged live file costs the leases in it:
//     the error is logged, and the file is written anew.
//
// # Order of writes
//
// Marks are created before the leases file that names them. A leases file is
// renamed into place before the marks expect its sequence. A new folder gets its
// leases file after its marks are up to date and after the old folder is void.
//
// # Without a live directory
//
// Without a file system in memory (macOS), the marks are in the state directory, and
// nothing is adopted after a crash. The first store to a page after the kernel has
// written it out then waits for the disk.
//
// # Limits
//
// The locks and the mapping need a local file system. Two virtual machines that are
// resumed from one memory snapshot share the whole state, and nothing here notices.
// The same holds for a live directory that is restored together with the state
// directory by a program that also restores inodes.
package state
