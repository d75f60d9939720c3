package eventloop

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// coolDown is how long a hot loop waits at most before it checks whether anything
	// has happened.
	coolDown = 20 * time.Millisecond
	// maxEvents are taken from the kernel at a time.
	maxEvents = 256
	// turnsAtOnce are given between two looks for events.
	turnsAtOnce = 4
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
	slots              []slot  // by descriptor
	again              []*Turn // of these, the first have been given
	given              int
	hot                bool
	quiet              bool // nothing has happened since the timer fired last
	stopping           bool

	mu     sync.Mutex
	posted []func() // guarded by mu
	spare  []func() // the loop's own, to be swapped with posted
	ended  bool     // guarded by mu
}

// slot belongs to a descriptor. The kernel reuses a descriptor's number as soon as it
// is closed; the generation distinguishes late events from new ones.
type slot struct {
	handler    Handler
	generation uint32
}

// Turn is a Handler's place in the queue of Handlers that asked for another turn. Each
// belongs to one Handler, which asks at most once at a time.
type Turn struct {
	Handler Handler
	asked   bool
}

// New returns a loop, which Run runs.
func New() (*Loop, error) {
	l := &Loop{epoll: -1, wake: -1, timer: -1, events: make([]unix.EpollEvent, maxEvents)}
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
	s.handler = h
	if err := l.control(unix.EPOLL_CTL_ADD, fd, s.generation, unix.EPOLLIN|unix.EPOLLRDHUP); err != nil {
		s.handler = nil
		return err
	}
	return nil
}

// Remove forgets the descriptor, which stays open.
func (l *Loop) Remove(fd int) {
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	l.slots[fd].handler = nil
}

// Again gives another turn to the Handler, after all others that are ready.
func (l *Loop) Again(t *Turn) {
	if !t.asked {
		t.asked = true
		l.again = append(l.again, t)
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

// Post makes the loop call f soon. It may be called from any goroutine. It returns
// false, and f is not called, once the loop has ended.
func (l *Loop) Post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.posted = append(l.posted, f)
	if len(l.posted) == 1 {
		_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if a wake-up is due already
	}
	return true
}

// Stop ends Run after the functions that were posted before it. It is for the loop's
// own thread.
func (l *Loop) Stop() { l.stopping = true }

// Run waits and calls until Stop.
func (l *Loop) Run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	changeProcessors(+1)
	defer changeProcessors(-1)
	defer l.close()
	for !l.end() {
		for _, event := range l.events[:l.wait()] {
			l.dispatch(event)
		}
		l.callPosted()
		l.giveTurns()
	}
}

func (l *Loop) dispatch(event unix.EpollEvent) {
	if int(event.Fd) == l.timer {
		l.tick()
		return
	}
	l.quiet = false
	if fd := int(event.Fd); fd != l.wake {
		if s := l.slots[fd]; s.handler != nil && s.generation == uint32(event.Pad) {
			s.handler.Ready(event.Events)
		}
	}
}

func (l *Loop) callPosted() {
	l.mu.Lock()
	if len(l.posted) == 0 {
		l.mu.Unlock()
		return
	}
	l.posted, l.spare = l.spare[:0], l.posted
	l.mu.Unlock()
	for i, f := range l.spare {
		f()
		l.spare[i] = nil
	}
}

// giveTurns gives turns to some Handlers, in the order in which they asked. Then the loop
// looks for events: who asks for little is not behind all who ask for much.
func (l *Loop) giveTurns() {
	for range min(turnsAtOnce, len(l.again)-l.given) {
		t := l.again[l.given]
		l.again[l.given] = nil
		l.given++
		t.asked = false
		t.Handler.Ready(0)
	}
	if l.given > len(l.again)/2 || l.given == len(l.again) {
		l.again = l.again[:copy(l.again, l.again[l.given:])]
		l.given = 0
	}
}

// end reports whether the loop is over. After that Post fails.
func (l *Loop) end() bool {
	if !l.stopping {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = len(l.posted) == 0
	return l.ended
}
