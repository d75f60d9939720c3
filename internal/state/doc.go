// Package state keeps a daemon's local state, in two places:
//
//	state_dir/           on a disk, survives a power failure
//	  state              identity; owner of locks; per service its timeline and its floor
//	  lock               names the holder; flock on the directory: one daemon per state directory
//	live_dir/            on a file system in memory, survives kill -9
//	  <identity>/        one folder per state directory; flock: one daemon per identity
//	    leases           per service the held leases, the cached lease, the timeline
//	    marks            memory-mapped: per service one timestamp, the mark
//	    holder           which state directory the folder belongs to
//
// A lease is only ever adopted in the boot that saved it. So it need not be on a
// disk, and a restored copy of the state directory holds no lease.
//
// # Requirements
//
//  1. The mark is exclusive: every ID so far embeds a timestamp below it.
//     RaiseMark is one store to memory, so kill -9 loses nothing.
//  2. Save waits for no disk. The state file follows about a second later. A power
//     failure can cost that second: order then depends on the clock having moved on.
//  3. One process uses a folder: the lock is on the folder itself.
//  4. All files of the folder are reached through its open descriptor. A save into a
//     folder that was removed or moved fails; no process writes into a folder of the
//     same name that another process made.
//  5. Each save has 64 random bits, which the leases file names. The marks hold two
//     words: next gets the bits before the file is written, done after the rename.
//     Leases are adopted only from a file with bits that are one of the two and with a
//     fitting checksum, boot and machine, which names the inodes of its folder and of the
//     marks. Where none is adopted, new marks are made, which know no file, and the
//     timelines are those of the state file.
//  6. A lease is released only when a save without it is done (Save returned nil).
//  7. A lost lease does not come back, whether or not a write succeeds: SaveAfterLoss
//     takes done away before it writes.
//  8. The process that has the state directory's lock and finds the folder locked
//     reads holder. If that names another state directory, its own one is a copy: it
//     begins under a new identity, without leases. If it names its own one, the lock
//     belongs to a predecessor that is dying, and the process waits.
//  9. Two daemons never take locks as one owner. The owner is adopted only under the
//     identity, in the boot and in the directory, by its inode, that it was made for.
//  10. The mark never goes down but by ResetFloor. Like AcceptTimeline, that gives the
//     directory a new identity in the same write, so no lease from before is adopted.
//  11. A damaged, foreign or newer state file is a FileError that names it and says
//     what to do; it is never replaced. A damaged live file costs the leases in it:
//     the error is logged, and the file is written anew.
//  12. Lost files stay lost: if live files are removed, moved or replaced under a running
//     daemon, IDs go on, the next save says so once in the log and in Health, and a crash
//     adopts nothing.
//  13. Close waits for a disk for a second at most. Then it warns, and succeeds: the marks make
//     up for the floors.
//
// # Why a file that fits may be adopted
//
// Marks are made by a process for the folder that it has locked. Others go on with them
// only beside a file that names both, so they stay that folder's. A lease gets into the
// file by a save, under the lock, beside the marks that cover its IDs from then on. It
// leaves the file by a save, too: from then on the old file's bits are in neither word, and
// before that its release is not sent. So each lease of a file that fits was used by the
// holders of this lock alone, one after the other, all below the mark. The present holder
// of the lock is the next one.
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
// resumed from one memory snapshot share the whole state, and nothing here notices. The
// same holds for files of the live directory that are overwritten in place by older ones
// within one boot: only the daemon's own user can do that. Marks that are cut short under a
// running daemon end its process (SIGBUS), and the next start adopts nothing.
// A folder whose state directory is gone, or has another identity, stays until the next boot: 80 KB.
package state
