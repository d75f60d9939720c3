// Package capacity holds a simulation that says how many hosts fit on one pool. Every host has the
// real keeper, one for each service; the provider is the real one in memory. The clock is simulated:
// one queue of events drives everything, nothing sleeps and nothing is concurrent, so that a seed
// repeats a run exactly.
//
// Hosts start, restart and crash at times drawn from random numbers of their own. Calls are never
// lost and take no simulated time, but a release may take some until it has an effect: the only
// question here is whether the slots suffice.
package capacity
