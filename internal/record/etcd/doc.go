// Package etcd keeps records in etcd, for all hosts that use it. A change is answered
// when a majority of the members has it on disk.
//
// # One round trip
//
// A rule runs in this process. Its first run is on this process's memory of the records
// from its latest change of them, or on their absence where it knows nothing. One
// transaction then compares everything that the rule was shown, and carries out its
// writes or returns the present state, on which the rule runs again. Only writes may rest
// on an old view, because only they are compared: before a refusal, or a decision not to
// write, the records are read.
//
// Callers of one process take turns at a key, so that only processes race. They pause
// between tries, for longer each time; a process that has won a race pauses before its
// next change of the same records, so that no other one starves.
//
// # Keys, below PREFIX@AREA/
//
//	k/KEY   a line of JSON (header), which names the version, and the value
//	t/KEY   the marker: it is there until the record's term ends
//	floor   the floor, in decimal
//	fence   the area's life since an operator has fenced it (facts); and fence/runs, a marker
//
// The marker hangs on an etcd lease, so that the cluster itself ends the term. Record
// and marker are always written together and have the same revision. A record of which
// nothing is wanted after its term hangs on the lease itself, and has no marker.
//
// A lease lasts longer than the term by a fifth, so that a record that is written again
// with the same term need not keep its lease alive each time.
//
// A transaction compares that line, and not a revision of etcd: a cluster that was restored from
// a snapshot counts the same revisions once more, and its ID may be the same.
//
// # The fence
//
// etcd forgets nothing. That a cluster was restored from a snapshot, nothing in it tells: an
// operator does. Each transaction compares the key fence, or that there is none, so that no
// process grants on what it knew before. It is read with the records, and costs no round trip.
// While it is in doubt, each process sees to it that the fence lasts as long as its own grants.
//
// A fence is over for a host by the host's clock, so that a new lease begins after the end of
// each that may be missing; and not before etcd has ended its marker, whatever clocks say.
//
// Records that are due are deleted as others are made. How long a record is kept after
// its term is the one thing that the clocks of hosts decide.
package etcd
