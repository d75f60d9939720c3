// Package load is the load generator, which is the same for every server: that of
// the benchmarks, and of kazahanad bench.
//
// It makes its system calls directly, without the runtime's poller: blocking
// ones for one connection, one epoll loop for many. It checks every answer's
// form, its number where the protocol has one, and that IDs increase, so that a
// server that answers wrongly cannot look fast.
package load
