package eventloop

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// told is what a handler was told of, and when.
type told struct {
	events uint32
	text   string
}

func TestReadiness(t *testing.T) {
	l, _ := start(t)
	here, there := socketpair(t)
	all := make(chan told, 10)
	on(t, l, func() {
		if err := l.Add(here, handler(func(events uint32) { all <- told{events, drain(here)} })); err != nil {
			t.Error(err)
		}
	})
	for _, text := range []string{"a", "bc", "def"} {
		write(t, there, text)
		if got := <-all; got.events != unix.EPOLLIN || got.text != text {
			t.Errorf("%+v, want %q", got, text)
		}
	}
	must.Succeed(t, unix.Shutdown(there, unix.SHUT_WR))
	if got := <-all; got.events&unix.EPOLLRDHUP == 0 || got.events&unix.EPOLLHUP != 0 {
		t.Errorf("a peer that sends no more: %x", got.events)
	}
	_ = unix.Shutdown(there, unix.SHUT_RDWR)
	if got := <-all; got.events&unix.EPOLLHUP == 0 {
		t.Errorf("a peer that is gone: %x", got.events)
	}
	settle(t, l)
	if len(all) > 0 {
		t.Errorf("told again of what it knows: %+v", <-all)
	}
}

// A handler that leaves something unread is told when there is more, and not
// before.
func TestReadinessIsTold(t *testing.T) {
	l, _ := start(t)
	here, there := socketpair(t)
	var calls atomic.Int32
	on(t, l, func() { _ = l.Add(here, handler(func(uint32) { calls.Add(1) })) })
	for want := range int32(3) {
		settle(t, l)
		if n := calls.Load(); n != want {
			t.Fatalf("told %d times of %d arrivals", n, want)
		}
		write(t, there, "x")
	}
}

// The kernel refuses what cannot be waited for, and nothing is left behind.
func TestAddOfWhatCannotBeAdded(t *testing.T) {
	l, _ := start(t)
	here, there := socketpair(t)
	on(t, l, func() {
		h := handler(func(uint32) {})
		if err := l.Add(here, h); err != nil {
			t.Error(err)
		}
		_ = unix.Close(there)
		if err := l.Add(there, h); !errors.Is(err, unix.EBADF) {
			t.Errorf("a closed descriptor: %v", err)
		}
		n := 0
		l.Each(func(Handler) { n++ })
		if n != 1 {
			t.Errorf("%d handlers", n)
		}
	})
}

func TestRemoveInsideReady(t *testing.T) {
	l, _ := start(t)
	here, there := socketpair(t)
	var calls atomic.Int32
	on(t, l, func() {
		_ = l.Add(here, handler(func(uint32) {
			calls.Add(1)
			drain(here)
			l.Remove(here)
		}))
	})
	for range 3 {
		write(t, there, "x")
		settle(t, l)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("called %d times", n)
	}
	if got := drain(here); got != "xx" {
		t.Errorf("the descriptor gives %q", got)
	}
	// It may come back.
	on(t, l, func() { _ = l.Add(here, handler(func(uint32) { calls.Add(1) })) })
	write(t, there, "x")
	settle(t, l)
	if n := calls.Load(); n != 2 {
		t.Errorf("called %d times", n)
	}
}

// Two descriptors are ready at once, and the first that is told removes the other. The
// other's event must not arrive any more: not at its own handler, and not at the handler
// of a new socket that has got its number.
func TestEventsOfTheRemoved(t *testing.T) {
	for _, again := range []bool{false, true} {
		name := map[bool]string{false: "removed", true: "its number used again"}[again]
		t.Run(name, func(t *testing.T) {
			l, _ := start(t)
			var here, there [2]int
			for i := range here {
				here[i], there[i] = socketpair(t)
			}
			other, peer := socketpair(t)
			calls, late, right, number := 0, 0, 0, -1
			on(t, l, func() {
				for i, fd := range here {
					_ = l.Add(fd, handler(func(uint32) {
						calls++
						drain(fd)
						number = here[1-i]
						l.Remove(number)
						if !again {
							return
						}
						if err := unix.Dup3(other, number, unix.O_CLOEXEC); err != nil { // which closes it
							t.Error(err)
						}
						_ = l.Add(number, handler(func(uint32) {
							if drain(number) == "new" {
								right++
							} else {
								late++
							}
						}))
					}))
				}
				for _, fd := range there {
					write(t, fd, "x")
				}
			})
			settle(t, l)
			write(t, peer, "new")
			settle(t, l)
			on(t, l, func() {
				if calls != 1 || late != 0 {
					t.Errorf("%d calls, %d of them for a new descriptor by an old event", calls+late, late)
				}
				if again && right != 1 {
					t.Errorf("the new descriptor was told of %d times", right)
				}
			})
		})
	}
}

// All that is posted is called, in its order, until the end, and nothing after.
func TestPost(t *testing.T) {
	const posters, most = 8, 2000
	l, stop := start(t)
	var accepted, called atomic.Int64
	var last [posters]int
	var all sync.WaitGroup
	for i := range posters {
		all.Go(func() {
			for n := 1; n <= most; n++ {
				if !l.Post(func() {
					called.Add(1)
					if n != last[i]+1 {
						t.Errorf("poster %d: %d after %d", i, n, last[i])
					}
					last[i] = n
				}) {
					return
				}
				accepted.Add(1)
				if i == 0 && n == most/2 {
					l.Post(l.Stop) // while the others go on
				}
			}
		})
	}
	all.Wait()
	stop()
	if a, c := accepted.Load(), called.Load(); a != c || a == 0 {
		t.Errorf("%d posts were accepted, and %d called", a, c)
	}
	if l.Post(func() { t.Error("called after the end") }) {
		t.Error("a post was accepted after the end")
	}
}

func TestStop(t *testing.T) {
	l, stop := start(t)
	here, _ := socketpair(t)
	var line []string
	on(t, l, func() {
		say := func(what string) {
			if !l.Post(func() { line = append(line, what) }) {
				t.Errorf("%s was not accepted", what)
			}
		}
		say("before")
		l.Post(func() {
			l.Stop()
			if err := l.Add(here, handler(func(uint32) {})); !errors.Is(err, ErrStopped) {
				t.Errorf("Add: %v", err)
			}
			say("by the one that stops")
			l.Post(func() { say("by one of those") })
		})
		say("after")
	})
	stop()
	if got := strings.Join(line, ", "); got != "before, after, by the one that stops, by one of those" {
		t.Errorf("called: %s", got)
	}
}

func TestReceiveAndSend(t *testing.T) {
	here, there := socketpair(t)
	b := make([]byte, 1<<16)
	if _, errno := Receive(here, b); errno != unix.EAGAIN {
		t.Errorf("nothing is there: %v", errno)
	}
	write(t, there, "abc")
	if n, errno := Receive(here, b[:2]); n != 2 || errno != 0 || string(b[:2]) != "ab" {
		t.Errorf("%d, %v", n, errno)
	}
	sent, errno := 0, unix.Errno(0)
	for errno == 0 {
		var n int
		if n, errno = Send(here, b); errno == 0 {
			sent += n
		}
	}
	if errno != unix.EAGAIN || sent == 0 {
		t.Errorf("%d bytes, %v", sent, errno)
	}
	for sent > 0 {
		n, errno := Receive(there, b)
		if errno != 0 {
			t.Fatal(errno)
		}
		sent -= n
	}
	_ = unix.Close(there)
	if n, errno := Receive(here, b); n != 1 || errno != 0 {
		t.Errorf("what came before the end: %d, %v", n, errno)
	}
	if n, errno := Receive(here, b); n > 0 || errno != 0 && errno != unix.ECONNRESET {
		t.Errorf("at the end: %d, %v", n, errno)
	}
	// It costs the process no signal.
	if n, errno := Send(here, b); n > 0 || errno != unix.EPIPE {
		t.Errorf("nobody reads: %d, %v", n, errno)
	}
}
