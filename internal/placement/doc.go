// Package placement answers where an actor (kind, identity) lives, and has it
// activated there exactly once. Experimental.
//
// # Layers
//
//   - Core is a pure state machine: it is told what happened and when, and returns
//     what to do (commands) and what to tell (events, resolutions). It performs no
//     I/O and reads no clock.
//   - A driver carries out the commands, one for a key at a time, and hands their
//     results back.
//
// # Guarantees
//
//   - The authority of a key is a pure function of the key and the set of members:
//     rendezvous hashing, see Topology.
//   - The activation record of a key is the only truth about its owner. A member
//     writes its name into the record before it has the process activate, and does
//     so only if the record names no owner, or itself, or a member with an ended
//     membership. So an owner that is alive, however slow, is never overtaken.
//   - A member counts the end of its own membership from before the request that
//     got it, and activates nothing after that end; it has its actors passivated.
//   - A store accepts no record that is older than the one it has, and tokens of a
//     key strictly increase from one activation to the next: a process
//     that was paused beyond all this is found out by a comparison of tokens.
package placement
