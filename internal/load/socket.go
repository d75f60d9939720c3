//go:build linux

package load

import (
	"errors"
	"fmt"
	"io"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The runtime does not know of raw system calls. That saves its bookkeeping around each
// of them, and works only because nothing else in the process has to run while the load
// generator waits.

var errSilent = errors.New("the server does not answer")

// socket is a blocking Unix socket.
type socket struct {
	fd      int
	timeout time.Duration
}

// connect connects. A read or write that takes longer than the timeout fails;
// with 0 it waits for ever.
func connect(path string, timeout time.Duration) (socket, error) {
	var s socket
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return s, err
	}
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
	)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		_ = unix.Close(fd)
		return s, err
	}
	return socket{fd, timeout}, nil
}

func (s socket) close() { _ = unix.Close(s.fd) }

// interruptions limits a wait that signals interrupt: the kernel starts its timeout
// again after each, and the runtime may send one every few milliseconds.
type interruptions struct{ first int64 }

// tooLong reports whether interruptions go on for longer than the timeout.
func (i *interruptions) tooLong(timeout time.Duration) bool {
	at := now()
	if i.first == 0 {
		i.first = at
	}
	return timeout > 0 && at-i.first > int64(timeout)
}

// read waits for at least one byte. b must not be empty.
func (s socket) read(b []byte) (int, error) {
	var interrupted interruptions
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case errno == unix.EINTR && !interrupted.tooLong(s.timeout):
			continue
		case errno == unix.EINTR, errno == unix.EAGAIN:
			return 0, errSilent
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
	var interrupted interruptions
	for len(b) > 0 {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno == unix.EAGAIN || errno == unix.EINTR && interrupted.tooLong(s.timeout) {
			return errSilent
		}
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
	timeout  time.Duration // 0: none
	sessions []*session
	events   []unix.EpollEvent
	ready    []int
}

func newPoller(sessions []*session, timeout time.Duration) (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p := &poller{fd: fd, sessions: sessions, events: make([]unix.EpollEvent, len(sessions)), ready: make([]int, 0, len(sessions)), timeout: timeout}
	for i, s := range sessions {
		// The kernel returns the field Fd unchanged. Here it holds an index.
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}
		if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, s.socket.fd, &event); err != nil {
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
	limit := -1 // milliseconds
	if p.timeout > 0 {
		limit = int(max(p.timeout.Milliseconds(), 1))
	}
	var interrupted interruptions
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd),
			uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), uintptr(limit), 0, 0)
		if errno == unix.EINTR && !interrupted.tooLong(p.timeout) {
			continue
		}
		if errno == unix.EINTR || errno == 0 && n == 0 {
			return nil, errSilent
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
