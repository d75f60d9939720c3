package daemon

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Socket takes a descriptor over as it is. net.FileConn would make a copy, for which there may
// be no descriptor left. The connection does not know its addresses.
func Socket(fd int) net.Conn { return socketFile{os.NewFile(uintptr(fd), "connection")} }

type socketFile struct{ *os.File }

// LocalAddr implements net.Conn.
func (socketFile) LocalAddr() net.Addr { return nil }

// RemoteAddr implements net.Conn.
func (socketFile) RemoteAddr() net.Addr { return nil }

func (f socketFile) CloseWrite() error {
	return withFD(f, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}
