package eventloop

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	tests "github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// armed reports whether the loop's timer is going to fire.
func armed(t *testing.T, l *Loop) bool {
	t.Helper()
	var left unix.ItimerSpec
	must.Succeed(t, unix.TimerfdGettime(l.timer, &left))
	return left.Value != unix.Timespec{}
}

// A loop in which nothing happens cools down at the second look, and is hot
// again with the next event. The test takes the loop's place, step by step.
func TestCoolDown(t *testing.T) {
	l, err := New(func() {})
	must.Succeed(t, err)
	defer l.close()
	step := func() {
		for _, event := range l.events[:l.wait()] {
			l.dispatch(event)
		}
		l.callPosted()
	}
	calls := 0
	for range 3 {
		l.Post(func() { calls++ })
		if step(); !l.hot {
			t.Fatal("an event has not made it hot")
		}
		looks := 0
		for deadline := time.Now().Add(tests.Patience); l.hot; {
			quiet := l.quiet
			step()
			if l.quiet != quiet || !l.hot { // or else the wait was interrupted
				looks++
			}
			if time.Now().After(deadline) {
				t.Fatalf("it is still hot after %d looks", looks)
			}
		}
		if looks != 2 || armed(t, l) {
			t.Fatalf("cool after %d looks, timer %v", looks, armed(t, l))
		}
	}
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}
}

// An event between two looks keeps it hot.
func TestEventsKeepItHot(t *testing.T) {
	l, err := New(func() {})
	must.Succeed(t, err)
	defer l.close()
	l.heat()
	for range 3 {
		l.dispatch(unix.EpollEvent{Fd: int32(l.timer)})
		l.dispatch(unix.EpollEvent{Fd: int32(l.wake)})
		if !l.hot {
			t.Fatal("cool")
		}
	}
	l.tick()
	l.tick()
	if l.hot {
		t.Error("hot without an event")
	}
}

// Others are not held up by a loop that waits: the world stops when it has to,
// with however few processors.
func TestCollectionWhileALoopWaits(t *testing.T) {
	ring.All(t)
	for _, processors := range []int{1, runtime.GOMAXPROCS(0)} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		l, stop := start(t)
		end := make(chan struct{})
		var all sync.WaitGroup
		for range 300 {
			all.Go(func() {
				var garbage []byte
				for {
					select {
					case <-end:
						return
					default:
						garbage = append(garbage[:0:0], make([]byte, 1000)...)
						runtime.Gosched()
					}
				}
			})
		}
		for range 30 {
			on(t, l, func() {}) // it is hot now, and waits
			runtime.GC()
		}
		close(end)
		all.Wait()
		stop()
	}
}

// A processor that a loop holds is not missed, and given back.
func TestProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	var stops []func()
	for n := range 3 {
		l, stop := start(t)
		on(t, l, func() {}) // it runs
		stops = append(stops, stop)
		if got := runtime.GOMAXPROCS(0); got != before+n+1 {
			t.Errorf("%d processors with %d loops, %d without", got, n+1, before)
		}
	}
	var all sync.WaitGroup
	for _, stop := range stops {
		all.Go(stop)
	}
	all.Wait()
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("%d processors, %d before", got, before)
	}
}

// Where descriptors run out there is an error, and none is kept.
func TestNewWithoutDescriptors(t *testing.T) {
	before := descriptors(t)
	var limit unix.Rlimit
	must.Succeed(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	// The next free one, if the numbers in use have no gaps.
	next, err := unix.Dup(0)
	must.Succeed(t, err)
	_ = unix.Close(next)
	for room := range 3 {
		few := limit
		few.Cur = uint64(next + room)
		must.Succeed(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
		if _, err := New(func() {}); !errors.Is(err, unix.EMFILE) {
			t.Errorf("room for %d: %v", room, err)
		}
	}
	must.Succeed(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors are left", n-before)
	}
}

func TestDescriptors(t *testing.T) {
	before := descriptors(t)
	for range 20 {
		l, stop := start(t)
		on(t, l, func() {})
		if n := descriptors(t); n != before+3 {
			t.Fatalf("%d descriptors for a loop", n-before)
		}
		stop()
		if n := descriptors(t); n != before {
			t.Fatalf("%d descriptors are left", n-before)
		}
	}
}
