package eventloop

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

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

// callPosted calls what was posted, in its order.
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
