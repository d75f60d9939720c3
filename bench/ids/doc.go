// Package ids measures the daemon beside what it is compared with, and
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
package ids
