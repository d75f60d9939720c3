// Package load is the load generator of the benchmarks and of kazahanad bench, for
// several kinds of servers.
//
// It makes its system calls directly, without the runtime's poller: blocking ones for
// one connection, one epoll loop for many. It checks the form of every answer, its
// number if the protocol has one, and that IDs increase, so that a server with wrong
// answers cannot look fast.
package load
