package state

import (
	"golang.org/x/sys/unix"
)

// InMemory reports whether the directory is on a file system in memory: no disk can
// stall an access, and backups leave it out.
func InMemory(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && isMemory(fs)
}

// inMemory checks the open directory, not its name.
func (d *osDir) inMemory() bool {
	f, err := d.root.Open(".")
	if err != nil {
		return false
	}
	defer f.Close()
	var fs unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &fs) == nil && isMemory(fs)
}

func isMemory(fs unix.Statfs_t) bool {
	return fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC
}

func hostIdentity() Identity {
	return Identity{
		MachineID: firstID("/etc/machine-id", "/var/lib/dbus/machine-id"),
		BootID:    firstID("/proc/sys/kernel/random/boot_id"),
	}
}
