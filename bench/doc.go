// Command bench measures the daemon beside what it is compared with, and
// prints a table of figures and a table of targets with a verdict for each.
// docs/performance.md explains the method at length.
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
// Rows that need other settings, or would change what later rows find, start
// daemons of their own and stop them at once.
//
// # Parts
//
//	main.go        the program and its sub-modes, each a process
//	plan.go        the command line
//	run.go         the run: start servers, go through the rounds, clean up
//	rows.go        all rows, and those that are measured on every server
//	generator.go, rendezvous.go
//	               in process, without a socket
//	leases.go, growth.go, start.go, quiet.go, placement.go, actors.go, memory.go
//	               rows with daemons of their own; disturb.go is what
//	               disturbs in the row quiet
//	targets.go     what is promised of each row
//	print.go       the report; others.go tells when the machine was not quiet
//	servers.go     what is compared; a further reference is one more entry
//	daemon.go      how a daemon is started
//	goecho.go, cecho.go with cecho/, redis.go, katsubushi.go
//	               the references
//	load           the load generator, and how each server is asked
//	process        processes: pinned, never left behind; what they use
//	report         samples, targets, verdicts, tables
package main
