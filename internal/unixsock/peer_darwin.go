package unixsock

import "golang.org/x/sys/unix"

func peerCredentials(fd int) (Peer, error) {
	c, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return Peer{}, err
	}
	pid, err := unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	if err != nil {
		pid = 0 // known to newer systems only, and used for messages only
	}
	peer := Peer{PID: pid, UID: c.Uid}
	if c.Ngroups > 0 {
		peer.GID = c.Groups[0]
		peer.Groups = c.Groups[1:min(int(c.Ngroups), len(c.Groups))]
	}
	return peer, nil
}
