package sqlitefile

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
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
	}
	// A file system in memory gives no inode number twice.
	id.sure = id.BornNS != 0 || folder.InMemory(path)
	return id, nil
}
