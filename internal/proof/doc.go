// Package proof holds the proof of uniqueness as a test: many hosts, made of
// the real generator core and the real keeper, over one provider, all with
// clocks of their own that are wrong and jump, crashing, restarting, losing
// answers. Nothing sleeps and nothing is concurrent, so that a seed repeats a
// run exactly.
//
// Each rule on which the proof rests can be switched off, one at a time, in
// the adapters between the rooms (the product has no such switches). Then the
// simulation must find two equal IDs: that shows both that the rule is needed
// and that the simulation would notice its loss. `make proof` prints the table.
//
// Times are small on purpose: terms of some tens of milliseconds and clocks
// that are off by as much make IDs meet wherever nothing keeps them apart.
package proof
