//go:build linux

package load

import (
	"errors"
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Raw system calls tell the runtime nothing. That saves its bookkeeping around
// each of them, and is fine here only because the load generator has a single
// goroutine: nobody else wants the processor while it waits.

// socket is a blocking Unix socket.
type socket int

func connect(path string) (socket, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return socket(fd), nil
}

func (s socket) close() { _ = unix.Close(int(s)) }

// read waits for at least one byte. b must not be empty.
func (s socket) read(b []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(s), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return 0, fmt.Errorf("read: %w", errno)
		case n == 0:
			return 0, fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
		}
		return int(n), nil
	}
}

// write writes all of b, which must not be empty.
func (s socket) write(b []byte) error {
	for len(b) > 0 {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(s), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno != 0 && errno != unix.EINTR {
			return fmt.Errorf("write: %w", errno)
		}
		if errno == 0 {
			b = b[n:]
		}
	}
	return nil
}

// poller waits for many sessions at once.
type poller struct {
	fd       int
	sessions []*session
	events   []unix.EpollEvent
	ready    []int
}

func newPoller(sessions []*session) (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p := &poller{fd: fd, sessions: sessions, events: make([]unix.EpollEvent, len(sessions)), ready: make([]int, 0, len(sessions))}
	for i, s := range sessions {
		// The kernel hands the field Fd back as it is: here it is an index.
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}
		if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(s.socket), &event); err != nil {
			p.close()
			return nil, fmt.Errorf("epoll: %w", err)
		}
	}
	return p, nil
}

func (p *poller) close() { _ = unix.Close(p.fd) }

// wait returns the indexes of the sessions that can be read, at least one. The
// slice is valid until the next call.
func (p *poller) wait() ([]int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd),
			uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), ^uintptr(0), 0, 0)
		if errors.Is(errno, unix.EINTR) {
			continue
		}
		if errno != 0 {
			return nil, fmt.Errorf("epoll: %w", errno)
		}
		p.ready = p.ready[:0]
		for _, event := range p.events[:n] {
			p.ready = append(p.ready, int(event.Fd))
		}
		return p.ready, nil
	}
}
