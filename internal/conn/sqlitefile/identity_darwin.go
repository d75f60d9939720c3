package sqlitefile

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func identityOf(path string) (identity, error) {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Stat(path, &st) }); err != nil {
		return identity{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return identity{Inode: int64(st.Ino), BornNS: st.Btim.Nano(), sure: st.Btim.Nano() != 0, device: uint64(st.Dev)}, nil
}
