// Command bench measures the daemon beside what it is compared with, and
// prints one table.
//
// # Method
//
// Every server is a process of its own, and so is the load generator, which is
// the same for all. Server and load generator are pinned to one core: on few
// cores, unpinned round trips vary several-fold with where the scheduler puts
// the two. Rates are therefore those of one core that does both halves of the
// work. Each round measures, row by row, every server once, one right after
// the other; a ratio is taken within a round, so that what disturbs the machine
// for longer than a few seconds falls on both sides of it. Shown are medians
// over the rounds, with the least and the greatest.
//
// The load generator makes system calls directly, without the runtime's
// poller: blocking ones for one connection, one epoll loop for many. It checks
// every answer, so that a server that answers wrongly cannot look fast.
//
// # Parts
//
//	run.go        the plan: start servers, go through the rounds, clean up
//	servers.go    what is compared; a further reference is one more entry there
//	workload.go   the rows; a further row is one more entry there
//	dialect.go    how a server is asked, and how its answers are checked
//	load.go       the load generator (sub-mode load)
//	echo.go       the plain Go echo server (sub-mode echo)
//	generator.go  the generator in process, without a socket (sub-mode generator)
//	process.go    processes: pinned, and never left behind
//	table.go      the table
package main
