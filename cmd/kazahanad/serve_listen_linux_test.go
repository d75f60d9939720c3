package main

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// The kernel keeps little of what a TCP peer has sent.
func TestTCPReceivesAreBounded(t *testing.T) {
	l, err := listen("127.0.0.1:0", unixsock.Options{})
	must.Succeed(t, err)
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	must.Succeed(t, err)
	defer peer.Close()
	conn, err := l.Accept()
	must.Succeed(t, err)
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must.Succeed(t, err)
	var size int
	must.Succeed(t, raw.Control(func(fd uintptr) { size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) }))
	if err != nil || size != 2*receiveBuffer {
		t.Errorf("%d bytes, %v", size, err)
	}
}
