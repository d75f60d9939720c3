package folder

import "golang.org/x/sys/unix"

// InMemory reports whether the file or the directory is on a file system in memory: no disk can
// hold up an access, and no backup has it.
func InMemory(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC)
}
