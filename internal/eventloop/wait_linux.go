package eventloop

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const forever = -1

// wait returns the number of events. It does not wait while a Handler is due for
// another turn.
func (l *Loop) wait() int {
	timeout := forever
	if len(l.again) > 0 || l.stopping {
		timeout = 0
	}
	if !l.hot && timeout == forever {
		n, err := unix.EpollWait(l.epoll, l.events, forever)
		l.heat()
		if err != nil {
			return 0 // interrupted
		}
		return n
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll),
		uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), uintptr(timeout), 0, 0)
	if errno != 0 {
		return 0 // interrupted; the runtime gets control at the next call
	}
	return int(n)
}

// heat starts the timer that ends waits which the runtime does not know of.
func (l *Loop) heat() {
	l.hot, l.quiet = true, false
	l.setTimer()
}

// tick is called when the timer has fired.
func (l *Loop) tick() {
	if l.quiet {
		l.hot = false
		return
	}
	l.quiet = true
	l.setTimer()
}

// setTimer makes the timer fire once. A repeating timer would have to be read before
// it fires again.
func (l *Loop) setTimer() {
	_ = unix.TimerfdSettime(l.timer, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(coolDown.Nanoseconds())}, nil)
}

// Receive reads available bytes into b, which must not be empty. It returns 0 at the
// end of the stream, and unix.EAGAIN if there is nothing to read.
func Receive(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// Send writes as much of b, which must not be empty, as the socket accepts.
func Send(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}
