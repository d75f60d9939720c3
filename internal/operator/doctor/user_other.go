//go:build !linux

package doctor

import "os"

// As runs the probe. Only on Linux can a thread have rights of its own.
func As(uid, _ int, _ []int, probe func()) bool {
	probe()
	return uid == os.Geteuid()
}

// GroupsOf knows nothing here.
func GroupsOf(int) (gid int, groups []int) { return -1, nil }
