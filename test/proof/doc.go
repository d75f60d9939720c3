// Package proof holds the proof of uniqueness as a test: daemons that are made of
// the real generator, keeper and state run on simulated disks and memory, over one
// provider. In half of the worlds, clients extend leases too. All clocks are wrong
// and jump; processes are killed, machines boot, files are copied, put back, lost
// and damaged, and messages go astray. A seed repeats a run exactly: nothing is
// concurrent but the generators' timers, and a testing/synctest bubble says when
// they fire.
//
// Each rule on which the proof rests can be switched off, one at a time, in what
// lies between the rooms: the simulated directories, the wire, the store. The
// product has no such switches. Then the simulation must find two equal IDs, which
// shows that the rule is needed, and that the simulation would notice its loss.
// `make proof` prints the table.
//
// In whole worlds the daemons have locks, sequences and placement too, at the end of a network
// to one store of records: the product's hosts, blocks and drivers; the world lets their goroutines
// go on one at a time. Some of them lease from two lease servers, the product's with its client.
// The records of one world of four are in the product's SQLite file, in a directory in memory, and
// in half of those, the even seeds, the leases are in one too: their process is killed between any
// two steps of a write, commits are torn, disks freeze or lose writes, their host boots, and older
// copies are put back. The others have models of Redis, etcd and PostgreSQL, which forget in their
// own ways. In the even seeds of those, three hosts lease from a model too: on etcd by clocks of
// their own, on Redis with or without the confirmation of replicas, where a clock steps and a
// failover happens within a call too. Without a file system in memory, all worlds have models.
// `make simulate` runs them, and prints which faults met which states.
//
// Times are small on purpose: terms of some tens of milliseconds and clocks that
// are off by as much make IDs meet wherever nothing keeps them apart.
package proof
