package doctor

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystemTypes are the relevant file systems, by the number that statfs gives.
var fileSystemTypes = map[int64]string{
	unix.NFS_SUPER_MAGIC: "nfs", unix.SMB_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs", unix.SMB2_SUPER_MAGIC: "smb2",
	unix.V9FS_MAGIC: "9p", unix.AFS_SUPER_MAGIC: "afs", unix.CEPH_SUPER_MAGIC: "ceph", unix.CODA_SUPER_MAGIC: "coda",
	unix.OCFS2_SUPER_MAGIC: "ocfs2", unix.FUSE_SUPER_MAGIC: "fuse", 0x0BD00BD0: "lustre", 0x01161970: "gfs2",
	unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", 0x2fc12fc1: "zfs", unix.F2FS_SUPER_MAGIC: "f2fs",
}

func describe(st *unix.Statfs_t) (kind string, readOnly bool) {
	kind, known := fileSystemTypes[int64(st.Type)&0xffffffff]
	if !known {
		kind = fmt.Sprintf("%#x", st.Type)
	}
	return kind, st.Flags&unix.ST_RDONLY != 0
}

// clockSourceFile names the kernel's clock source.
const clockSourceFile = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

// ProbeClock asks the kernel about its clock.
func ProbeClock() (c Clock) {
	if source, err := os.ReadFile(clockSourceFile); err == nil {
		c.Source = strings.TrimSpace(string(source))
	}
	var t unix.Timex // no mode is set, so nothing is adjusted
	status, err := unix.Adjtimex(&t)
	c.Known = err == nil
	c.Synchronised = c.Known && status != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
	return c
}
