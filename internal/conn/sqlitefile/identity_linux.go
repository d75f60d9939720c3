package sqlitefile

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func identityOf(path string) (identity, error) {
	var st unix.Statx_t
	err := ignoringEINTR(func() error {
		return unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &st)
	})
	if err != nil {
		return identity{}, fmt.Errorf("statx %s: %w", path, err)
	}
	id := identity{Inode: int64(st.Ino), device: unix.Mkdev(st.Dev_major, st.Dev_minor)}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.BornNS = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
		id.sure = true
		return id, nil
	}
	// A file system in memory gives no inode number twice.
	id.sure, err = inMemory(path)
	return id, err
}

// inMemory reports whether the file or directory is on a file system that is
// kept in memory, so that no disk can hold it up and no backup has it.
func inMemory(path string) (bool, error) {
	var st unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Statfs(path, &st) }); err != nil {
		return false, fmt.Errorf("statfs %s: %w", path, err)
	}
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC, nil
}
