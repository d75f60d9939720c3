// Package eventloop serves thousands of sockets with one thread, on Linux.
//
// With a goroutine per connection a Go program makes about twice the system calls that
// the work needs, because the runtime also asks its poller and wakes threads for it. A
// thread that waits in epoll, reads, answers and writes needs three calls for a request,
// and an idle connection costs it a few dozen bytes.
//
// # How it waits
//
// While there is work the loop is hot: it waits in system calls that the runtime does
// not know of. That saves the runtime's bookkeeping, and keeps the processor (P) that
// the loop runs on. To make up for that processor, GOMAXPROCS is one higher while a loop
// runs. The runtime interrupts such a wait by a signal when it has
// to stop the world. A kernel timer ends the wait every coolDown; if nothing has happened
// since, the loop cools down: it stops the timer and waits in an ordinary system call
// without a limit.
//
// # Turns
//
// Readiness is edge-triggered: a Handler must read until nothing is left, or ask for
// another turn with Again. Its turn is after those of all that are ready, so Handlers are
// served in a circle, and there is no other order. A Handler keeps its turns short, and may leave a
// part of them to the function that the loop calls after each round.
package eventloop
