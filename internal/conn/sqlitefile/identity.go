package sqlitefile

import (
	"fmt"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// identity distinguishes a file from its copies. It leaves out the device, so that a volume
// may move to another host.
type identity struct {
	Inode  int64 // the bits of the kernel's unsigned number
	BornNS int64 // Unix ns; 0 if the file system does not record it
	// sure says that no copy can have the same identity. It is not stored.
	sure bool
	// device is the file system's. It is not stored in the file.
	device uint64
}

// is reports whether the file is the recorded one.
func (i identity) is(recorded identity) bool {
	return i.Inode == recorded.Inode && i.BornNS == recorded.BornNS
}

// mark is the random name of a life, or of a watermark.
type mark = uuid.UUID

// stamp changes with every write to a file: by SQLite, or by a program that copies another
// file over it.
type stamp struct{ Size, ModifiedNS, ChangedNS int64 }

func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Stat(path, &st) }); err != nil {
		return stamp{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return stamp{st.Size, st.Mtim.Nano(), st.Ctim.Nano()}, nil
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
