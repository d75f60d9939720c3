package main

import (
	"errors"
	"net"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// A host without IPv6 has all addresses of IPv4: net.Listen takes those, and so does doctor.
func TestTryPortWithoutIPv6(t *testing.T) {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the filter is the thread's, and ends with it
		if err := withoutIPv6(); err != nil {
			failed <- err
			return
		}
		if _, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0); !errors.Is(err, unix.EAFNOSUPPORT) {
			failed <- errors.New("the thread has IPv6")
			return
		}
		failed <- tryPort(":0")
	}()
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// withoutIPv6 gives this thread the error of a kernel that has no IPv6.
func withoutIPv6() error {
	jumpUnless := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: skip}
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	filter := []unix.SockFilter{
		load(0), jumpUnless(unix.SYS_SOCKET, 3), // the number of the call
		load(16), jumpUnless(unix.AF_INET6, 1), // its first argument
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

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
