package daemon

import (
	"net"
	"os"
	"syscall"
	"testing"
)

// socketpair is a connection without a listener. What is written to one end
// before the other is served comes in one read, as far as that read reaches.
func socketpair(t testing.TB) (client, server *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]*net.UnixConn{}
	for i, fd := range fds {
		syscall.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "socketpair")
		nc, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		ends[i] = nc.(*net.UnixConn)
	}
	return ends[0], ends[1]
}
