package sqlitefile

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate gives a file room, also behind its end, which stays where it is. It reports false
// where the disk is full.
func allocate(file *os.File, size int64) bool {
	err := ignoringEINTR(func() error { return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size) })
	return !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT)
}
