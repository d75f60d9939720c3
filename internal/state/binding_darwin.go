package state

import "golang.org/x/sys/unix"

// macOS has no machine-id file. The session's UUID is new at each boot, and
// unlike kern.boottime it stays the same when the clock is set.
func hostIdentity() Identity {
	session, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return Identity{}
	}
	return Identity{BootID: cleanID(session)}
}
