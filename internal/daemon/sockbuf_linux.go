package daemon

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// withFD calls do with the descriptor, and returns its error.
func withFD(nc syscall.Conn, do func(fd int) error) error {
	raw, err := nc.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// setSendBuffer bounds what the kernel holds of a stream's answers.
func setSendBuffer(nc syscall.Conn, size int) {
	_ = withFD(nc, func(fd int) error { return setSendBufferOf(fd, size) })
}

func setSendBufferOf(fd, size int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
}

// unread is how much the kernel holds of a stream's answers for the peer.
func unread(nc syscall.Conn) (held int) {
	_ = withFD(nc, func(fd int) (err error) {
		held, err = unreadOf(fd)
		return err
	})
	return held
}

func unreadOf(fd int) (int, error) {
	held, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if held > 0 && reset(fd) {
		return 0, nil
	}
	return held, err
}

// reset reports whether a TCP connection has ended without its peer, which has reset it or does not answer
// any more. The kernel has freed what it held then, and still tells how much that was.
func reset(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO) // which Unix sockets do not have
	return err == nil && info.State == unix.BPF_TCP_CLOSE
}

// shutdown ends a stream in both directions. What was sent can still be read.
func shutdown(nc syscall.Conn) error {
	return withFD(nc, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) })
}
