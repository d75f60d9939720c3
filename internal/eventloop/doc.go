// Package eventloop lets one thread look after thousands of sockets, on Linux.
//
// A goroutine per connection costs a Go program about twice the system calls
// that the work itself needs: the runtime's poller is asked in between, and a
// thread is woken to ask it. One thread of our own that waits in epoll, reads,
// answers and writes needs three for a request, and an idle connection costs it
// a few dozen bytes.
//
// # How it waits
//
// While there is work the loop is hot: it waits by system calls that the
// runtime does not know of. That saves the runtime's bookkeeping around each of
// them, and keeps the processor (P) that the loop runs on; so that nobody else
// misses that one, GOMAXPROCS is raised by one while a loop runs (from then on
// Go no longer follows changes of a container's CPU limit by itself). The runtime
// interrupts such a wait by a signal when it has to stop the world. A timer of
// the kernel's ends it every coolDown in any case; when nothing has happened
// in between, the loop cools down: the timer is stopped, and the loop waits by
// an ordinary system call, for as long as it takes.
//
// Readiness is edge-triggered: a Handler that is told of it must read until
// nothing is left, or ask for another turn with Again.
package eventloop
