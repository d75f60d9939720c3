// Package sequence hands out the values of named sequences: 1, 2, 3, ... for
// each key, across hosts.
//
// # Promises
//
// Within one run of a key, no value is handed out twice, and values come in
// their order: a call that begins after another has answered gets greater ones.
// A run begins with the first value, and ends where the key's maximum is reached
// and it starts over (OnMax), or where the key was not used for its TTL. Without
// a maximum and a TTL there is one run, for ever.
//
// Nothing is skipped, so that n values handed out are the first n of the run,
// with these exceptions: a call with a lost answer that is not repeated; a batch that
// does not fit before the maximum, which begins the next run as a whole, because a batch
// is always n values one step apart; an operator's Declare; and Blocks.
//
// A call that is repeated with its RequestID gets the values of the first, so
// that a lost answer need not leave a gap, as long as the key remembers it: the
// latest MaxReceipts calls. Later it is a new call, and the values of the first
// are skipped.
//
// # How
//
// Next is the whole of the rules, as a pure transition from one State to the
// next. A Store carries it out in one atomic step, by its own clock, and answers
// when that is as durable as the store ever makes it: OnRecords on any record
// store. Calls of one caller that wait for the same key are carried out by one
// change (together.go), one after the other. A store that may have forgotten values that it
// handed out refuses with a FencedError rather than guess; see docs/sequences.md.
package sequence
