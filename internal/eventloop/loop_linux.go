package eventloop

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// coolDown is how long a hot loop waits at most before it checks whether anything
	// has happened.
	coolDown = 20 * time.Millisecond
	// maxEvents are taken from the kernel at a time.
	maxEvents = 256
)

// ErrStopped is the error of Add once the loop stops.
var ErrStopped = errors.New("event loop: stopped")

// Handler is called on the loop's thread when its descriptor may be ready.
type Handler interface {
	// Ready is called with the descriptor's events (EPOLLIN and others), or
	// with 0 when it has asked for another turn. It must not block.
	Ready(events uint32)
}

// Loop is one thread that waits for many descriptors. Add, Again and Remove may be
// called on its own thread only: by Handlers and by functions passed to Post.
type Loop struct {
	epoll, wake, timer int
	events             []unix.EpollEvent
	slots              []slot            // by descriptor
	again, spare       []unix.EpollEvent // turns that Handlers asked for, without events; and room for the next ones
	hot                bool
	quiet              bool // nothing has happened since the timer fired last
	stopping           bool
	after              func() // called after each round of calls

	posts posts
}

// slot belongs to a descriptor. The kernel reuses a descriptor's number as soon as it
// is closed; the generation distinguishes late events from new ones.
type slot struct {
	handler    Handler
	generation uint32
	asked      bool // it is in Loop.again
}

// New returns a loop, which Run runs. The loop calls after behind each round of calls: when it has
// called all Handlers that were ready, all posted functions, or all Handlers that had asked for
// another turn. So Handlers can leave to after what costs less for many of them.
func New(after func()) (*Loop, error) {
	l := &Loop{epoll: -1, wake: -1, timer: -1, events: make([]unix.EpollEvent, maxEvents), after: after}
	if err := l.open(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *Loop) open() (err error) {
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("timerfd_create: %w", err)
	}
	// They are edge-triggered, so they need never be read.
	for _, fd := range []int{l.wake, l.timer} {
		if err := l.control(unix.EPOLL_CTL_ADD, fd, 0, unix.EPOLLIN); err != nil {
			return err
		}
	}
	return nil
}

func (l *Loop) close() {
	for _, fd := range []int{l.epoll, l.wake, l.timer} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

func (l *Loop) control(op, fd int, generation, events uint32) error {
	event := unix.EpollEvent{Events: events | unix.EPOLLET, Fd: int32(fd), Pad: int32(generation)}
	if err := unix.EpollCtl(l.epoll, op, fd, &event); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// Add calls h when the descriptor can be read, or its peer has hung up.
func (l *Loop) Add(fd int, h Handler) error {
	if l.stopping {
		return ErrStopped
	}
	for fd >= len(l.slots) {
		l.slots = append(l.slots, slot{})
	}
	s := &l.slots[fd]
	s.generation++
	s.handler, s.asked = h, false
	if err := l.control(unix.EPOLL_CTL_ADD, fd, s.generation, unix.EPOLLIN|unix.EPOLLRDHUP); err != nil {
		s.handler = nil
		return err
	}
	return nil
}

// Remove forgets the descriptor, which stays open.
func (l *Loop) Remove(fd int) {
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	if fd < len(l.slots) { // else it was never added
		l.slots[fd].handler = nil
	}
}

// Each calls do for every Handler. The Handler may remove itself.
func (l *Loop) Each(do func(Handler)) {
	for i := range l.slots {
		if h := l.slots[i].handler; h != nil {
			do(h)
		}
	}
}

// Stop ends Run after the functions that were posted before it. It is for the loop's
// own thread.
func (l *Loop) Stop() { l.stopping = true }

// Run waits and calls until Stop. It is the last that its goroutine does.
func (l *Loop) Run() {
	runtime.LockOSThread() // for good: the thread ends with the loop
	defer addProcessor()()
	defer l.close()
	for !l.end() {
		for _, event := range l.events[:l.wait()] {
			l.dispatch(event)
		}
		l.after()
		l.callPosted()
		l.after()
		l.giveTurns()
		l.after()
	}
}

func (l *Loop) dispatch(event unix.EpollEvent) {
	if int(event.Fd) == l.timer {
		l.tick()
		return
	}
	l.quiet = false
	if int(event.Fd) != l.wake {
		l.call(event)
	}
}

// call calls the Handler that the event is for, if it has not been removed.
func (l *Loop) call(event unix.EpollEvent) {
	if s := &l.slots[event.Fd]; s.handler != nil && s.generation == uint32(event.Pad) {
		s.handler.Ready(event.Events)
	}
}

// Again gives the descriptor's Handler another turn, after all that are ready now. A
// Handler that asks twice before has one.
func (l *Loop) Again(fd int) {
	if s := &l.slots[fd]; s.handler != nil && !s.asked {
		s.asked = true
		l.again = append(l.again, unix.EpollEvent{Fd: int32(fd), Pad: int32(s.generation)})
	}
}

// giveTurns gives each Handler that has asked for another turn one. A Handler that asks during
// its own is behind the events that have come meanwhile.
func (l *Loop) giveTurns() {
	turns := l.again
	l.again = l.spare[:0]
	for _, turn := range turns {
		if s := &l.slots[turn.Fd]; s.generation == uint32(turn.Pad) {
			s.asked = false
		}
		l.call(turn)
	}
	l.spare = turns
}

// posts are functions for the loop. They need no lock, for which the loop might wait while
// the runtime serves others.
type posts struct {
	last   atomic.Pointer[post] // &closed once the loop has ended
	wakers atomic.Int64         // who may be using the wake descriptor
}

type post struct {
	f      func()
	before *post
}

var closed post

// Post makes the loop call f soon. It may be called from any goroutine. It returns
// false, and f is not called, once the loop has ended.
func (l *Loop) Post(f func()) bool {
	l.posts.wakers.Add(1)
	defer l.posts.wakers.Add(-1)
	for p := (&post{f: f}); ; {
		before := l.posts.last.Load()
		if before == &closed {
			return false
		}
		p.before = before
		if l.posts.last.CompareAndSwap(before, p) { // from now on it is the loop's
			if before == nil {
				_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if a wake-up is due already
			}
			return true
		}
	}
}

// callPosted calls the posted functions, in their order.
func (l *Loop) callPosted() {
	if l.posts.last.Load() == nil {
		return
	}
	var first *post
	for p := l.posts.last.Swap(nil); p != nil; {
		p, p.before, first = p.before, first, p
	}
	for ; first != nil; first = first.before {
		first.f()
	}
}

// end reports whether the loop is over. After that Post fails.
func (l *Loop) end() bool {
	if !l.stopping || !l.posts.last.CompareAndSwap(nil, &closed) {
		return false
	}
	for l.posts.wakers.Load() > 0 { // no number of a closed descriptor may be written to
		runtime.Gosched()
	}
	return true
}

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

// processors guards GOMAXPROCS against changes at the same time.
var processors sync.Mutex

// addProcessor gives the runtime one processor (P) more, until end: a hot loop keeps its own
// while it waits. The system shares its own processors among the threads as before. From the
// first call on the runtime follows no change of a container's CPU limit.
func addProcessor() (end func()) {
	change := func(by int) {
		processors.Lock()
		defer processors.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + by)
	}
	change(+1)
	return func() { change(-1) }
}
