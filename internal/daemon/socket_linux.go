package daemon

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// setSendBuffer bounds what the kernel holds of a connection's answers, which it counts to the
// daemon until the peer reads them.
func setSendBuffer(nc syscall.Conn) {
	_ = withFD(nc, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer) })
}

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

// socketFile is a descriptor taken over as it is. net.FileConn would make a copy, for which there may
// be no descriptor left.
type socketFile struct{ *os.File }

func (f socketFile) CloseWrite() error {
	return withFD(f, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}
