package state

import "golang.org/x/sys/unix"

// macOS has no machine-id file. The session's UUID is new at each boot, and
// unlike kern.boottime it stays the same when the clock is set.
func hostIdentity() Identity {
	session, _ := unix.Sysctl("kern.bootsessionuuid")
	return Identity{BootID: session}
}
