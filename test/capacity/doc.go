// Package capacity holds a simulation that says how many hosts fit on one pool.
// Every host has the real keeper, one for each service; the provider is the
// real one in memory. The clock is simulated: one queue of
// events drives everything, nothing sleeps and nothing is concurrent, so that a
// seed repeats a run exactly, and a day of thousands of hosts takes seconds.
//
// Hosts start, restart and crash at times drawn from random numbers of their
// own. Calls are never lost and take no simulated time, but a release may take
// some until it has an effect: the only question here is whether the slots suffice.
//
// # How the largest number of hosts is found
//
// As long as no slot is missing, hosts do not notice each other. So the first n hosts of
// a run take the same slots with any hosts after them, and is independent of how many
// slots there are. One run on a pool with slots to spare records the interval for which
// each grant takes its slot; the largest n that never needs more slots than a real pool
// has is then found by bisection. Tests hold both halves of this: that recorded intervals
// agree with the provider's records, and that on a pool with exactly so many slots n
// hosts have no failed acquire and n+1 have one.
//
// `make capacity` prints the tables of docs/capacity.md.
package capacity
