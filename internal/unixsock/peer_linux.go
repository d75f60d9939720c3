package unixsock

import "golang.org/x/sys/unix"

func peerCredentials(fd int) (Peer, error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Peer{}, err
	}
	return Peer{PID: int(c.Pid), UID: c.Uid, GID: c.Gid}, nil
}
