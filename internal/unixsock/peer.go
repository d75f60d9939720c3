package unixsock

import (
	"fmt"
	"syscall"
)

// Peer is the process at the other end of a connection, with the credentials with
// which it connected, as the kernel reports them.
type Peer struct {
	PID int // 0 = not known
	UID uint32
	GID uint32 // the primary group
	// The supplementary groups, where the system tells them, without groups that the user
	// namespace does not know. They must not be changed.
	Groups []uint32
	// The process has a user, or group, that this process's user namespace does not know.
	// The kernel shows all of them as one ID, which others may have of their own.
	UnmappedUID, UnmappedGID bool
}

// PeerOf asks the kernel who is at the other end.
func PeerOf(conn syscall.Conn) (Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	var peer Peer
	var credErr error
	if err := raw.Control(func(fd uintptr) { peer, credErr = peerCredentials(int(fd)) }); err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	if credErr != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", credErr)
	}
	return peer, nil
}
