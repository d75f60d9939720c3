package eventloop

import (
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const forever = -1

// wait returns how many events there are. It does not wait while somebody is
// due for another turn.
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
		return 0 // interrupted; the runtime has its way at the next call
	}
	return int(n)
}

// heat makes sure that waits which the runtime does not know of come to an end.
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

// setTimer has the timer fire once: one that repeats would have to be read
// before it fires again.
func (l *Loop) setTimer() {
	_ = unix.TimerfdSettime(l.timer, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(coolDown.Nanoseconds())}, nil)
}

// processors guards GOMAXPROCS from loops that begin or end at the same time.
var processors sync.Mutex

// changeProcessors makes up for the processor that a loop holds.
func changeProcessors(by int) {
	processors.Lock()
	defer processors.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + by)
}

// Receive reads what has come into b, which must not be empty. It returns 0 at
// the end of the stream, and unix.EAGAIN where there is nothing.
func Receive(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// Send writes as much of b, which must not be empty, as the socket takes.
func Send(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}
